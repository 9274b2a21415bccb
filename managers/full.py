"""Full attention: one search from the left, and hits that may end inside a block."""

from __future__ import annotations

import numpy as np
from mypy_extensions import mypyc_attr

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.cached_prefix import CachedPrefix
from kvhybrid.managers.retention.base import RetainedRequest
from kvhybrid.managers.search import LiveSetSearch
from kvhybrid.managers.suffix import SuffixManager
from kvhybrid.managers.table import BlockTable
from kvhybrid.specs import SuffixSpec


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefixSearch(LiveSetSearch):
    """A missing block rules out every longer hit, so the cached length is found once and then only cut.

    If hits may end inside a block, the first block that is not cached as a whole is tried at every unit inside it,
    the longest first: a block keyed under a partial prefix covers that prefix. A block that is cached as a whole
    but ends beyond the limit is not tried: only its own end is keyed.
    """

    def __init__(self, manager: FullAttentionManager, path: IntArray, alignment: int, margin: int) -> None:
        cached = CachedPrefix(manager.pool, manager.group_ids, path, manager.units_per_block)
        super().__init__(manager.spec, cached, manager.block_size, alignment, margin)
        self.manager = manager
        self.path = path
        self._covered = -1
        self._tail: IntArray | None = None

    def at_most(self, limit: int) -> int:
        if self._covered < 0:
            self._covered = self._cover(limit + self.margin)
        p = min(limit, self._covered - self.margin)
        return max(p - p % self.alignment, 0)

    def _cover(self, limit: int) -> int:
        """How many tokens, up to ``limit``, are cached from the start."""
        size = self.block_size
        full = self.cached.first_missing(0, min(limit // size, self.cached.num_entries))
        if self.alignment >= size:
            return full * size
        unit = self.manager.rules.hash_unit
        first = full * self.manager.units_per_block
        last = min(first + self.manager.units_per_block - 1, limit // unit, len(self.path))
        if last <= first:
            return full * size
        found = self.manager.pool.keys.index[self.manager.group_ids[:, None], self.path[first:last]]
        inside = np.flatnonzero((found > 0).all(axis=0))
        if not len(inside):
            return full * size
        self._tail = found[:, inside[-1]]
        return (first + int(inside[-1]) + 1) * unit

    def blocks(self, p: int) -> IntArray:
        entries = -(-p // self.block_size)
        whole = min(entries, self._covered // self.block_size)
        if whole == entries:
            return self.cached.blocks(0, entries)
        assert self._tail is not None
        tail = self._tail[:, None]
        return np.concatenate((self.cached.blocks(0, whole), tail), axis=1) if whole else tail


@mypyc_attr(allow_interpreted_subclasses=True)
class FullAttentionManager(SuffixManager):
    """Groups whose every token is read by all later ones: no block is dead before the request ends."""

    spec: SuffixSpec

    def _search(self, path: IntArray, alignment: int, margin: int) -> LiveSetSearch:
        return PrefixSearch(self, path, alignment, margin)

    def dead(self, table: BlockTable, num_tokens: int) -> list[tuple[int, int]]:
        return []

    def no_work_until(self, table: BlockTable, keyed: int, tokens_after: int) -> int:
        return self._next_need(table, keyed)

    def register(self, table: BlockTable, path: IntArray, num_tokens: int, request: RetainedRequest) -> None:
        super().register(table, path, num_tokens, request)
        if self.rules.sub_block_hits and self.units_per_block > 1 and not table.tail_keyed:
            self._register_tail(table, path, num_tokens, request)

    def _register_tail(self, table: BlockTable, path: IntArray, num_tokens: int, request: RetainedRequest) -> None:
        """Key the block in which the prompt's last whole unit ends, so that a resend can start from there."""
        unit = self.rules.hash_unit
        usable = request.num_prompt_tokens - (0 if self.margin else 1)
        units = min(usable // unit, len(path))
        if not units or units * unit > num_tokens:
            return
        table.tail_keyed = True
        if units % self.units_per_block:
            entry = units * unit // self.block_size
            for i, group in enumerate(self.groups):
                block = int(table.ids[i, entry])
                self.pool.keys.register_shorter(group, block, int(path[units - 1]))
                self.written_from[block] = table.ends[0]
