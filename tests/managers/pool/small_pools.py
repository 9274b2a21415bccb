"""Small pools, and one block keyed or looked up."""

from __future__ import annotations

import numpy as np

from kvhybrid.managers.arrays import int_array
from kvhybrid.managers.pool.block_pool import BlockPool

ROOM = 64
"""Prefix numbers that the tests use."""


def pool_of(num_blocks: int, num_groups: int = 1) -> BlockPool:
    pool = BlockPool(num_blocks, num_groups)
    pool.keys.grow(ROOM)
    return pool


def ids(*blocks: int) -> np.ndarray:
    return int_array(blocks)


def key(pool: BlockPool, block: int, number: int, group: int = 0) -> None:
    pool.keys.register(group, ids(block), ids(number))


def served(pool: BlockPool, number: int, group: int = 0) -> int:
    """The block that a look-up of ``number`` finds, 0 for none."""
    return int(pool.keys.index[group, number])


def everything(pool: BlockPool) -> tuple[object, ...]:
    """All that a caller can see of the pool."""
    blocks = range(pool.num_blocks)
    return (
        pool.free_queue(),
        pool.num_free,
        pool.refs.tolist(),
        [sorted(pool.keys.of(b)) for b in blocks],
        pool.keys.index.tolist(),
        pool.evictions.tolist(),
    )
