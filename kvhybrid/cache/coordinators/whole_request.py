"""How many blocks a request takes until all its tokens are computed."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm
from typing import Final

import numpy as np

from kvhybrid.cache.coordinators.allocation import Allocation
from kvhybrid.cache.coordinators.groups import Groups
from kvhybrid.cache.coordinators.request_tables import RequestTables
from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.managers.table import BlockTable

MOST_STEPS: Final = 128
"""Steps tried for one request. Where more could be the worst, each group is charged its bound."""


class WholeRequest:
    """The most free blocks that a request ever takes, over all steps by which it may be computed.

    A step from ``n`` to ``m`` tokens holds what live(n) reads and what the step writes. That grows with ``m``, and
    with ``n`` while no block becomes dead. So the worst steps are the longest ones that start at the last
    position, or right before a block of some group becomes dead. These positions repeat
    (`KVCacheSpec.release_cycle`): the last of each cycle are enough, since earlier ones hold no more.

    A step may start at any number of tokens from the current one: what tokens in flight read is still held.
    """

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self._has_state = any(manager.spec.state for manager in groups.managers)
        periods: list[int] = []
        cycles: list[tuple[int, int]] = []
        self.is_exact = True
        """Whether the worst steps are known; if not, each group is charged its bound."""
        for manager in groups.managers:
            periods.append(manager.block_size)
            if manager.spec.prefix or manager.spec.source == "encoder":
                continue
            cycle = manager.spec.release_cycle(manager.block_size)
            if cycle is None:
                self.is_exact = False
            elif cycle not in cycles:
                cycles.append(cycle)
                periods.append(cycle[0])
        whole = lcm(*periods)
        self._cycles = [(period, phase, whole // period) for period, phase in cycles]
        """Where blocks become dead: period, phase, and how many of these positions the period of all groups
        has."""
        if sum(repeats for _, _, repeats in self._cycles) > MOST_STEPS:
            self.is_exact = False

    def demand(
        self, held: RequestTables, hits: Sequence[IntArray] | None, allocation: Allocation, full: int
    ) -> list[int]:
        """Per pool, the free blocks that the request takes at most until ``full`` tokens are computed.

        Never too few, and exact if `is_exact`, as for built-in specs unless the common period of chunks and blocks
        is too long. The copy of a partial hit is not counted: it is made by ``allocation`` itself, whose blocks
        `Groups.demand` counts.
        """
        need = [0] * len(self.groups.pools)
        before = allocation.tokens_before
        if before >= full:
            return need
        in_flight = self.groups.max_in_flight_tokens
        last = max(before, full - in_flight)
        starts = {last, max(before, 1)}  # no state is read from 0 tokens, and one from 1 token on
        if self._has_state:  # one token later, a state that others hold as well is replaced by one of its own
            starts.add(min(before + 1, full - 1))
        for period, phase, repeats in self._cycles:
            newest = last - (last - phase) % period
            starts.update(range(newest, max(newest - repeats * period, before - 1), -period))
        for manager in self.groups.managers:
            tail = manager.tail_position(held.owner)
            if before <= tail < full:
                starts.add(tail)
        for n in starts:
            step = self._step(held, hits, allocation, n, min(n + in_flight, full))
            need = [max(so_far, blocks) for so_far, blocks in zip(need, step, strict=True)]
        return need

    def _step(
        self, held: RequestTables, hits: Sequence[IntArray] | None, allocation: Allocation, n: int, m: int
    ) -> list[int]:
        """Per pool, the free blocks that are taken once the request has those for the step from ``n`` to ``m``."""
        groups = self.groups
        need = [0] * len(groups.pools)
        for c, (manager, table) in enumerate(held.pairs):
            size, spec = manager.block_size, manager.spec
            if groups.encodes[c]:
                blocks = max(-(-allocation.encoder_tokens // size) - table.length, 0)
            elif self.is_exact:
                blocks = spec.step_blocks(n, m, size)
            else:
                blocks = spec.admission_blocks(groups.max_in_flight_tokens, m, size)
            if n == manager.tail_position(held.owner):
                blocks += 1  # the copy that keeps the tail's key
            need[groups.pool_of[c]] += blocks * len(manager.groups)
            if hits:
                need[groups.pool_of[c]] -= _shared(manager, hits[c], n)
            elif not groups.encodes[c]:
                need[groups.pool_of[c]] -= _held(manager, table, n)
        return need


def _shared(manager: SingleTypeKVCacheManager, hit: IntArray, n: int) -> int:
    """The blocks of ``hit`` that others hold and that ``n`` tokens still read: they are in no free queue."""
    if manager.spec.prefix:
        return hit.size - manager.pool.count_free(hit)
    refs = manager.pool.refs
    return sum(
        [
            int(np.count_nonzero(refs[hit[:, live.start : live.stop]]))
            for live in manager.spec.live_blocks(n, manager.block_size)
        ]
    )


def _held(manager: SingleTypeKVCacheManager, table: BlockTable, n: int) -> int:
    """The blocks of ``table`` that a step from ``n`` tokens need not take.

    Those that only this request holds return to the pool when they are dead. Those that others hold as well serve
    while they are live.
    """
    refs = manager.pool.refs[table.ids[:, : table.length]]
    alone = int(np.count_nonzero(refs == 1))
    live = manager.spec.live_blocks(n, manager.block_size)
    return alone + sum([int(np.count_nonzero(refs[:, part.start : part.stop] > 1)) for part in live])
