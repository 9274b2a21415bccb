"""Chunked local attention: all blocks of a chunk are freed when the next chunk begins."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from kvhybrid.managers.suffix import SuffixManager


@mypyc_attr(allow_interpreted_subclasses=True)
class ChunkedLocalAttentionManager(SuffixManager):
    """Groups that read the tokens of one chunk."""
