"""Chunked local attention: all blocks of a chunk go back when the next chunk begins."""

from __future__ import annotations

from kvhybrid.managers.suffix import SuffixManager


class ChunkedLocalAttentionManager(SuffixManager):
    """Groups that read the tokens of one chunk."""
