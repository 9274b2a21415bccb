"""Sliding window: blocks below the window are freed as it moves."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from kvhybrid.managers.search import LiveSetSearch
from kvhybrid.managers.suffix import SuffixManager
from kvhybrid.managers.table import BlockTable
from kvhybrid.specs import SlidingWindowSpec


@mypyc_attr(allow_interpreted_subclasses=True)
class WindowSearch(LiveSetSearch):
    """A hit beyond the first window needs a run of cached blocks of a fixed length, searched from the right; a hit
    within the first window needs one that reaches back to the start."""

    spec: SlidingWindowSpec

    def at_most(self, limit: int) -> int:
        size, margin, alignment, cached = self.block_size, self.margin, self.alignment, self.cached
        p = min(limit, cached.num_entries * size - margin)
        while True:
            p -= p % alignment
            if p <= 0:
                return 0
            first, end = self.spec.first(p), -(-(p + margin) // size)
            missing = cached.last_missing(first // size, end) if first < p + margin else -1
            if missing < 0:
                return p
            if not first:
                p = cached.first_missing(0, missing) * size - margin
                continue
            reachable = cached.last_run(missing, end - first // size) * size - margin
            if reachable >= self.spec.window and not (reachable % alignment or (p - reachable) % size):
                return reachable  # a hit that is whole blocks shorter needs equally many
            p = max(reachable, min(missing * size - margin, self.spec.window - 1))


@mypyc_attr(allow_interpreted_subclasses=True)
class SlidingWindowManager(SuffixManager):
    """Groups that read a window of tokens."""

    spec: SlidingWindowSpec
    search_class = WindowSearch

    def _alive_until(self, table: BlockTable, tokens_after: int) -> int:
        return (table.dropped + 1) * self.block_size + self.spec.window - 2
