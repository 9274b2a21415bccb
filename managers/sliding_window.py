"""Sliding window: the blocks below the window go back as it moves."""

from __future__ import annotations

from kvhybrid.managers.suffix import SuffixManager


class SlidingWindowManager(SuffixManager):
    """Groups that read a window of tokens."""
