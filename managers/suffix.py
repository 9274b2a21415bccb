"""Specs whose live set is one range that ends at the token: the lowest blocks are dead first."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from mypy_extensions import mypyc_attr

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.managers.growth import NO_ENTRIES
from kvhybrid.managers.search import LiveSetSearch
from kvhybrid.managers.table import BlockTable
from kvhybrid.specs import SuffixSpec


@mypyc_attr(allow_interpreted_subclasses=True)
class SuffixSearch(LiveSetSearch):
    """Skips candidates whose last block is missing: a hit that reads anything at all needs that block."""

    spec: SuffixSpec

    def at_most(self, limit: int) -> int:
        size, margin, cached, p = self.block_size, self.margin, self.cached, self.highest(limit)
        while True:
            p -= p % self.alignment
            if p <= 0:
                return 0
            first = self.spec.first(p)
            end = -(-(p + margin) // size)
            missing = cached.last_missing(first // size, end) if first < p + margin else -1
            if missing < 0:
                return p
            p = missing * size - margin
            if missing == end - 1:
                reachable = (cached.last_present(missing, 1) + 1) * size - margin
                p = max(reachable, min(self.spec.first(p), p)) if not margin and p > 0 else reachable


@mypyc_attr(allow_interpreted_subclasses=True)
class SuffixManager(SingleTypeKVCacheManager):
    """Groups of a `SuffixSpec`."""

    spec: SuffixSpec
    search_class: ClassVar[type[LiveSetSearch]] = SuffixSearch

    def _entries(self, p: int) -> range:
        first = self.spec.first(p)
        return range(first // self.block_size, (p - 1) // self.block_size + 1) if first < p else NO_ENTRIES

    def dead(self, table: BlockTable, num_tokens: int) -> list[tuple[int, int]]:
        end = min(self.spec.first(num_tokens) // self.block_size, table.length)
        start, table.dropped = table.dropped, max(table.dropped, end)
        return [(start, end)] if start < end else []

    def lacking(self, path: IntArray, search: LiveSetSearch, start: int, end: int) -> np.ndarray:
        step, per_step = self.granularity, self.granularity // self.rules.hash_unit
        at = np.arange(start // step, max(end, start) // step)
        if not len(at):
            return at
        units = self._key_units((at + 1) * per_step - 1, len(path))
        absent = (self.pool.keys.index[self.group_ids[:, None], path[units]] == 0).any(axis=0)
        last = np.maximum.accumulate(np.where(absent, np.arange(len(at)), -1))
        found = units[np.maximum(last, 0)]
        for i in np.flatnonzero(last < 0).tolist():
            hole = search.highest_missing((int(at[i]) + 1) * step)
            found[i] = (hole + 1) * self.units_per_block - 1 if hole >= 0 else units[i]
        return found

    def _key_units(self, units: np.ndarray, path_length: int) -> np.ndarray:
        """The units whose keys must exist for hits that end on ``units``."""
        if self.spec.state:
            return units
        block_ends = (units // self.units_per_block + 1) * self.units_per_block - 1
        return np.where(block_ends < path_length, block_ends, units)

    def no_work_until(self, table: BlockTable, keyed: int, tokens_after: int) -> int:
        limit = min(self._next_need(table, keyed), self._alive_until(table, tokens_after))
        return limit if limit >= tokens_after - 1 else -1

    def _alive_until(self, table: BlockTable, tokens_after: int) -> int:
        """The longest sequence, at most a block beyond ``tokens_after``, that reads the lowest block held here.

        Less than ``tokens_after - 1`` if a sequence of that length does not read it.
        """
        low, high = tokens_after - 2, tokens_after + self.block_size
        while high - low > 1:
            middle = (low + high) // 2
            if self.spec.first(middle) // self.block_size <= table.dropped:
                low = middle
            else:
                high = middle
        return low
