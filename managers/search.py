"""The search for the longest prefix from which a manager's groups can resume."""

from __future__ import annotations

from math import lcm

import numpy as np
from mypy_extensions import mypyc_attr

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.cached_prefix import CachedPrefix
from kvhybrid.specs import KVCacheSpec


@mypyc_attr(allow_interpreted_subclasses=True)
class LiveSetSearch:
    """The search that needs nothing from a spec but `live_blocks`.

    A request can resume at ``p`` if cached blocks cover ``live(p)`` and the ``margin`` tokens above ``p``. A
    missing block rules out every ``p`` that reads it, down to where the request computes it itself, so candidates
    only move down and each block is probed once.
    """

    def __init__(
        self, spec: KVCacheSpec, cached: CachedPrefix, block_size: int, alignment: int, margin: int
    ) -> None:
        self.spec = spec
        self.cached = cached
        self.block_size = block_size
        self.alignment = lcm(alignment, block_size) if spec.state else alignment
        self.margin = margin
        self._entries = -1
        """Entries below this may be part of a hit, -1 if not known yet."""

    def at_most(self, limit: int) -> int:
        """The longest aligned ``p <= limit`` from which every group of the manager can resume."""
        size, margin, p = self.block_size, self.margin, self.highest(limit)
        while True:
            p -= p % self.alignment
            if p <= 0:
                return 0
            missing = self.highest_missing(p)
            if missing < 0:
                return p
            p = missing * size - margin

    def highest(self, limit: int) -> int:
        """The highest ``p <= limit`` that needs no block that this prefix cannot fill."""
        if self._entries < 0:
            self._entries = min(self.cached.num_entries, (limit + self.margin) // self.block_size)
        return min(limit, self._entries * self.block_size - self.margin)

    def highest_missing(self, p: int) -> int:
        """The highest block that a hit of ``p`` tokens would lack, or -1."""
        ranges = list(self.spec.live_blocks(p, self.block_size))
        if self.margin:
            ranges.append(range(p // self.block_size, (p + self.margin - 1) // self.block_size + 1))
        end = max((r.stop for r in ranges), default=0)
        if end > self.cached.num_entries:
            return end - 1
        return max((self.cached.last_missing(r.start, r.stop) for r in ranges), default=-1)

    def blocks(self, p: int) -> IntArray:
        """The table entries for a hit of ``p`` tokens, shaped (groups, entries); null entries are not read."""
        num_groups = self.cached.num_groups
        table = np.zeros((num_groups, -(-p // self.block_size)), np.int32)
        for entries in self.spec.live_blocks(p, self.block_size):
            table[:, entries.start : entries.stop] = self.cached.blocks(entries.start, entries.stop)
        return table

    def reads_any(self, p: int) -> bool:
        """Whether a hit of ``p`` tokens needs a block at all."""
        return any(len(entries) for entries in self.spec.live_blocks(p, self.block_size))
