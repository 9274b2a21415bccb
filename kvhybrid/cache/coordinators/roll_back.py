"""Going back: what a step needs to remember so that a manager that raises half-way leaves no trace."""

from __future__ import annotations

from itertools import chain

import numpy as np

from kvhybrid.cache.coordinators.base import KVCacheCoordinator
from kvhybrid.cache.coordinators.step import RequestTables
from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.pool.block_pool import BlockPool


def mark_step(coordinator: KVCacheCoordinator, held: RequestTables | None) -> None:
    """Note where the tables of ``held``, which a step is about to change, and the pending copies stand.

    ``held`` is None for a request that holds nothing yet.
    """
    for taken in coordinator.taken:
        if taken:
            taken.clear()
    for manager in coordinator.managers:
        manager.mark_copies()
    if held is not None:
        for table in held.tables:
            table.mark()


def undo_step(coordinator: KVCacheCoordinator, request_id: str, held: RequestTables | None) -> None:
    """Go back to the mark: old tables, no keys for what was not computed, references counted anew."""
    if held is None:
        coordinator.tables.pop(request_id, None)
    else:
        _restore(coordinator, held)
    for manager in coordinator.managers:
        manager.drop_copies()
    for pool, taken in zip(coordinator.pools, coordinator.taken, strict=True):
        for ids in taken:
            pool.drop_keys(ids.ravel())
    recount(coordinator)


def _restore(coordinator: KVCacheCoordinator, held: RequestTables) -> None:
    held.quiet_until, held.keys_from = -1, 0
    for manager, table in zip(coordinator.managers, held.tables, strict=True):
        table.go_back()
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
