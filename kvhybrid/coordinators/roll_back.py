"""Going back: what a step needs to remember so that a manager that raises half-way leaves no trace."""

from __future__ import annotations

from itertools import chain

import numpy as np

from kvhybrid.coordinators.base import KVCacheCoordinator
from kvhybrid.coordinators.step import RequestTables
from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.block_pool import BlockPool
from kvhybrid.managers.table import TableMark


class StepMark:
    """Where a request's tables and the pending copies stood before a step."""

    __slots__ = ("copies", "tables")

    def __init__(self, coordinator: KVCacheCoordinator, held: RequestTables | None) -> None:
        for taken in coordinator.taken:
            taken.clear()
        self.tables: list[TableMark] | None = [table.mark() for table in held.tables] if held else None
        """None for a request that held nothing."""
        self.copies = [len(manager.pending_copies[0]) for manager in coordinator.managers]
        """Per manager, how many copies were pending in each of its groups."""

    def go_back(self, coordinator: KVCacheCoordinator, request_id: str) -> None:
        """Undo the step: old tables, no keys for what was not computed, references counted anew."""
        if self.tables is None:
            coordinator.tables.pop(request_id, None)
        else:
            self._restore(coordinator, coordinator.tables[request_id])
        for manager, length in zip(coordinator.managers, self.copies, strict=True):
            for copies in manager.pending_copies:
                del copies[length:]
        for pool, taken in zip(coordinator.pools, coordinator.taken, strict=True):
            for ids in taken:
                pool.drop_keys(ids.ravel())
        recount(coordinator)

    def _restore(self, coordinator: KVCacheCoordinator, held: RequestTables) -> None:
        assert self.tables is not None
        held.quiet_until, held.keys_from = -1, 0
        for manager, table, mark in zip(coordinator.managers, held.tables, self.tables, strict=True):
            table.go_back(mark)
            fresh = table.ids[:, table.keyed : table.length].ravel()
            manager.pool.drop_keys(fresh[fresh > 0])


def recount(coordinator: KVCacheCoordinator) -> None:
    """Make every block's count the number of table entries and copies that name it."""
    for pool in coordinator.pools:
        _null_what_is_free(coordinator, pool)
        surplus = pool.refs - _entries_and_copies(coordinator, pool)
        short = np.flatnonzero(surplus < 0)
        pool.refs[short] -= surplus[short]
        pool.recount()
        while (surplus > 0).any():
            pool.release(np.flatnonzero(surplus > 0).astype(np.int32))
            surplus[surplus > 0] -= 1


def _null_what_is_free(coordinator: KVCacheCoordinator, pool: BlockPool) -> None:
    """Entries whose block has gone back already, though its table has not noticed."""
    for c, manager in enumerate(coordinator.managers):
        if manager.pool is pool:
            for held in coordinator.holders():
                ids = held.tables[c].ids
                ids[pool.refs[ids] == 0] = 0


def _entries_and_copies(coordinator: KVCacheCoordinator, pool: BlockPool) -> IntArray:
    expected = np.zeros(pool.num_blocks, np.int32)
    for c, manager in enumerate(coordinator.managers):
        if manager.pool is pool:
            for held in coordinator.holders():
                table = held.tables[c]
                np.add.at(expected, table.ids[:, : table.length].ravel(), 1)
            for pair in chain.from_iterable(manager.pending_copies):
                expected[list(pair)] += 1
    expected[0] = 0
    return expected
