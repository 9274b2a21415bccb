"""The keys in the pools of a cache manager, as plain values. No other file of the kit accesses a pool's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.managers.pool.block_pool import BlockPool


@dataclass(frozen=True)
class PoolKeys:
    """The maps from keys to blocks and from blocks to keys, which must agree."""

    found: Mapping[tuple[int, int], int]
    """(group, prefix number) to the block that a look-up finds."""
    held: Mapping[int, tuple[int, tuple[int, ...]]]
    """Cached block to its group and its prefix numbers, the longest prefix first."""
    blocks: Mapping[tuple[int, int], tuple[int, ...]]
    """(group, prefix number) to all blocks with that key, the one that a look-up finds first."""


def keys_of(pool: BlockPool) -> PoolKeys:
    held = {
        block: (int(pool.group_of[block]), tuple(pool.keys.of(block)))
        for block in np.flatnonzero(pool.keys.number_of).tolist()
    }
    keys = {(group, number) for group, numbers in held.values() for number in numbers}
    return PoolKeys(
        {(g, number): int(pool.keys.index[g, number]) for g, number in np.argwhere(pool.keys.index).tolist()},
        held,
        {key: tuple(pool.keys.blocks(*key)) for key in keys},
    )


def found_in(pool: BlockPool, group: int, number: int) -> int:
    """The block that a look-up of ``group`` finds under a prefix number, 0 for none."""
    return int(pool.keys.index[group, number])


def pool_of(manager: KVCacheManager, group: int) -> BlockPool:
    """The pool that has the blocks of ``group``."""
    coordinator = manager.coordinator
    return coordinator.managers[coordinator.place[group][0]].pool


def copies_of(manager: KVCacheManager, group: int) -> list[tuple[int, int]]:
    """The pending copies of ``group``, (source, target)."""
    c, i = manager.coordinator.place[group]
    return list(manager.coordinator.managers[c].pending_copies[i])
