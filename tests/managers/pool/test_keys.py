"""The keys of blocks: which block serves a key, and what happens to its other blocks."""

from __future__ import annotations

import pytest

from kvhybrid.managers.pool.block_pool import BlockPool
from tests.managers.pool.small_pools import everything, ids, key, pool_of, served


def test_the_same_number_means_another_key_in_another_group() -> None:
    pool = pool_of(4, num_groups=2)
    pool.take(2)
    key(pool, 1, 5, group=0)
    assert served(pool, 5, group=1) == 0
    key(pool, 2, 5, group=1)
    assert (served(pool, 5, group=0), served(pool, 5, group=1)) == (1, 2)


def test_of_duplicates_the_first_registered_serves_and_then_the_next() -> None:
    pool = pool_of(5)
    pool.take(3)
    for block in (2, 3, 1):
        key(pool, block, 7)
    assert served(pool, 7) == 2
    pool.evict([2])
    assert served(pool, 7) == 3
    pool.evict([3])
    assert served(pool, 7) == 1
    pool.evict([1])
    assert served(pool, 7) == 0


def test_a_waiting_duplicate_that_goes_never_serves() -> None:
    pool = pool_of(5)
    pool.take(3)
    for block in (1, 2, 3):
        key(pool, block, 7)
    pool.evict([2])
    pool.evict([1])
    assert served(pool, 7) == 3


def test_registering_a_key_again_changes_nothing() -> None:
    pool = pool_of(4)
    pool.take(2)
    key(pool, 1, 7)
    key(pool, 2, 7)
    before = everything(pool)
    key(pool, 1, 7)
    key(pool, 2, 7)
    assert everything(pool) == before


def test_a_block_may_have_several_keys_and_loses_them_together() -> None:
    pool = pool_of(4)
    pool.take(2)
    key(pool, 1, 3)
    key(pool, 1, 4)
    assert pool.keys.of(1) == [4, 3]
    assert (served(pool, 3), served(pool, 4)) == (1, 1)
    pool.evict([1])
    assert (pool.keys.of(1), served(pool, 3), served(pool, 4)) == ([], 0, 0)


def test_a_shorter_key_leaves_the_longest_in_front() -> None:
    pool = pool_of(4)
    pool.take(1)
    key(pool, 1, 4)
    pool.keys.register_shorter(0, 1, 3)
    assert pool.keys.of(1) == [4, 3]
    assert int(pool.keys.number_of[1]) == 4
    pool.keys.register_shorter(0, 1, 3)
    assert pool.keys.of(1) == [4, 3]


def test_a_shorter_key_on_a_block_without_one_is_its_key() -> None:
    pool = pool_of(4)
    pool.take(1)
    pool.keys.register_shorter(0, 1, 3)
    assert (pool.keys.of(1), served(pool, 3)) == ([3], 1)


def test_moved_keys_are_served_by_the_target_alone() -> None:
    pool = pool_of(5, num_groups=2)
    pool.take(2)
    key(pool, 1, 3, group=1)
    key(pool, 1, 4, group=1)
    pool.keys.move(1, 2)
    assert pool.keys.of(1) == []
    assert pool.keys.of(2) == [4, 3]
    assert (served(pool, 3, group=1), served(pool, 4, group=1)) == (2, 2)
    pool.release(ids(1))
    pool.release(ids(2))
    assert pool.free_queue() == [1, 3, 4, 2]


@pytest.mark.parametrize("more", [False, True], ids=["one key", "several keys"])
def test_the_target_of_moved_keys_serves_in_the_place_of_the_source(more: bool) -> None:
    pool = pool_of(6)
    pool.take(4)
    for block in (1, 2, 3):
        key(pool, block, 3)
    if more:
        key(pool, 1, 4)
    pool.keys.move(1, 4)
    assert pool.keys.blocks(0, 3) == [4, 2, 3]
    pool.keys.drop(ids(4))
    assert pool.keys.blocks(0, 3) == [2, 3]


def test_moving_no_keys_gives_none() -> None:
    pool = pool_of(4)
    pool.take(2)
    pool.keys.move(1, 2)
    assert (pool.keys.of(1), pool.keys.of(2)) == ([], [])


def test_the_index_grows_and_keeps_what_it_holds() -> None:
    pool = BlockPool(4, 2)
    pool.keys.grow(2)
    pool.take(1)
    key(pool, 1, 1, group=1)
    pool.keys.grow(5000)
    assert pool.keys.index.shape[1] >= 5000
    assert (served(pool, 1, group=1), served(pool, 4999, group=1)) == (1, 0)
    assert pool.keys.numbers_in_use().nonzero()[0].tolist() == [1]
