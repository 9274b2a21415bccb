"""Roll-back: what a call must remember so that a manager that raises half-way leaves no trace."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from kvhybrid.cache.coordinators.groups import Groups
from kvhybrid.cache.coordinators.request_tables import RequestTables
from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.pool.block_pool import BlockPool


def mark(groups: Groups, held: RequestTables | None) -> None:
    """Note the state of the pending copies and of the tables of ``held``, which a call is about to change.

    ``held`` is None for a request that holds nothing yet.
    """
    for taken in groups.taken:
        if taken:
            taken.clear()
    for manager in groups.managers:
        manager.mark_copies()
    if held is not None:
        for table in held.tables:
            table.mark()


def go_back(groups: Groups, held: RequestTables | None, holders: Sequence[RequestTables]) -> None:
    """Return to the mark: old tables, no keys for what was not computed, references recounted.

    ``holders`` are all that hold blocks at the mark, ``held`` among them unless it is None.
    """
    if held is not None:
        _restore(groups, held)
    for manager in groups.managers:
        manager.drop_copies()
    for pool, taken in zip(groups.pools, groups.taken, strict=True):
        for ids in taken:
            pool.keys.drop(ids.ravel())
    recount(groups, holders)


def _restore(groups: Groups, held: RequestTables) -> None:
    held.no_work_until, held.keys_from = -1, 0
    for manager, table in zip(groups.managers, held.tables, strict=True):
        table.go_back()
        fresh = table.ids[:, table.keyed : table.length].ravel()
        manager.pool.keys.drop(fresh[fresh > 0])


def recount(groups: Groups, holders: Sequence[RequestTables]) -> None:
    """Make every block's count the number of table entries and copies that name it."""
    for pool in groups.pools:
        _null_what_is_free(groups, holders, pool)
        surplus = pool.refs - _entries_and_copies(groups, holders, pool)
        short = np.flatnonzero(surplus < 0)
        pool.refs[short] -= surplus[short]
        pool.recount()
        while (surplus > 0).any():
            pool.release(np.flatnonzero(surplus > 0).astype(np.int32))
            surplus[surplus > 0] -= 1


def _null_what_is_free(groups: Groups, holders: Sequence[RequestTables], pool: BlockPool) -> None:
    """Entries whose block was returned before the failure, though their table still names it."""
    for c, manager in enumerate(groups.managers):
        if manager.pool is pool:
            for held in holders:
                ids = held.tables[c].ids
                ids[pool.refs[ids] == 0] = 0


def _entries_and_copies(groups: Groups, holders: Sequence[RequestTables], pool: BlockPool) -> IntArray:
    """How often each block occurs in tables and pending copies."""
    expected = np.zeros(pool.num_blocks, np.int32)
    for c, manager in enumerate(groups.managers):
        if manager.pool is pool:
            for held in holders:
                table = held.tables[c]
                np.add.at(expected, table.ids[:, : table.length].ravel(), 1)
            for pair in chain.from_iterable(manager.pending_copies):
                expected[list(pair)] += 1
    expected[0] = 0
    return expected
