"""What a block pool tells its observers, and when."""

from __future__ import annotations

import pytest

from kvhybrid.managers.arrays import IntArray, int_array
from kvhybrid.managers.pool.block_pool import BlockPool, BlockPoolError
from kvhybrid.managers.pool.observer import PoolObserver


class Listener(PoolObserver):
    """Writes down all that it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def taken(self, ids: IntArray) -> None:
        self.heard.append(("taken", ids.tolist()))

    def held(self, ids: IntArray) -> None:
        self.heard.append(("held", ids.tolist()))

    def freed(self, ids: IntArray) -> None:
        self.heard.append(("freed", ids.tolist()))

    def evicted(self, ids: IntArray, groups: IntArray) -> None:
        self.heard.append(("evicted", ids.tolist(), groups.tolist()))

    def stored(self, groups: IntArray, numbers: IntArray) -> None:
        self.heard += [("stored", group, numbers.tolist()) for group in groups.tolist()]

    def removed(self, groups: IntArray, numbers: IntArray) -> None:
        if len(groups):
            self.heard.append(("removed", groups.tolist(), numbers.tolist()))

    def cleared(self, groups: IntArray, numbers: IntArray) -> None:
        self.heard.append(("cleared", groups.tolist(), numbers.tolist()))


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def pool(listener: Listener) -> BlockPool:
    pool = BlockPool(6, num_groups=2)
    pool.keys.grow(20)
    pool.observers = (listener,)
    return pool


def heard(listener: Listener) -> list[tuple[object, ...]]:
    """What was told since the last time."""
    told, listener.heard = listener.heard, []
    return told


def cached(pool: BlockPool, listener: Listener, numbers: list[int], group: int = 0) -> list[int]:
    """Free blocks keyed under ``numbers``."""
    ids = pool.take(len(numbers))
    pool.keys.register(group, ids, int_array(numbers))
    pool.release(ids)
    heard(listener)
    return ids.tolist()


def test_allocations_and_frees_are_reported_in_batches(pool: BlockPool, listener: Listener) -> None:
    ids = pool.take(3)
    pool.release(ids)
    assert heard(listener) == [("taken", [1, 2, 3]), ("freed", [1, 2, 3])]


def test_only_the_last_holder_frees(pool: BlockPool, listener: Listener) -> None:
    ids = pool.take(2)
    pool.hold(ids[:1])
    heard(listener)
    pool.release(ids)
    assert heard(listener) == [("freed", [2])]


def test_a_held_block_that_is_held_again_is_no_news(pool: BlockPool, listener: Listener) -> None:
    ids = pool.take(1)
    heard(listener)
    pool.hold(ids)
    assert heard(listener) == []


def test_the_adoption_of_a_free_cached_block_is_reported(pool: BlockPool, listener: Listener) -> None:
    (block,) = cached(pool, listener, [7])
    pool.hold(int_array([block]))
    assert heard(listener) == [("held", [block])]


def test_new_keys_are_reported(pool: BlockPool, listener: Listener) -> None:
    ids = pool.take(2)
    heard(listener)
    pool.keys.register(1, ids, int_array([4, 5]))
    assert heard(listener) == [("stored", 1, [4, 5])]
    pool.keys.register(1, ids, int_array([4, 5]))
    assert heard(listener) == [], "they have them already"


def test_a_second_block_under_a_key_is_no_news_until_the_last_one_goes(
    pool: BlockPool, listener: Listener
) -> None:
    ids = pool.take(2)
    pool.keys.register(0, ids[:1], int_array([4]))
    heard(listener)
    pool.keys.register(0, ids[1:], int_array([4]))
    pool.evict(ids[:1].tolist())
    assert heard(listener) == []
    pool.evict(ids[1:].tolist())
    assert heard(listener) == [("removed", [0], [4])]


def test_a_second_key_of_a_block_is_reported_and_removed_with_the_first(
    pool: BlockPool, listener: Listener
) -> None:
    ids = pool.take(1)
    pool.keys.register(0, ids, int_array([9]))
    pool.keys.register_shorter(0, int(ids[0]), 8)
    assert heard(listener)[1:] == [("stored", 0, [9]), ("stored", 0, [8])]
    pool.evict(ids.tolist())
    assert sorted(heard(listener)) == [("removed", [0], [8]), ("removed", [0], [9])]


def test_reuse_tells_the_eviction_then_the_lost_keys_then_the_taking(pool: BlockPool, listener: Listener) -> None:
    cached(pool, listener, [4, 5], group=0)
    cached(pool, listener, [4], group=1)
    pool.take(5)
    told = heard(listener)
    assert [what for what, *_ in told] == ["evicted", "removed", "taken"]
    _, blocks, groups = told[0]
    assert (len(blocks), sorted(groups)) == (3, [0, 0, 1])  # type: ignore[arg-type, call-overload]


def test_a_key_that_moves_is_no_news(pool: BlockPool, listener: Listener) -> None:
    ids = pool.take(2)
    pool.keys.register(0, ids[:1], int_array([4]))
    heard(listener)
    pool.keys.move(int(ids[0]), int(ids[1]))
    assert heard(listener) == []
    pool.evict(ids[1:].tolist())
    assert heard(listener) == [("removed", [0], [4])]


def test_a_reset_tells_all_keys_at_once(pool: BlockPool, listener: Listener) -> None:
    cached(pool, listener, [4, 5], group=0)
    cached(pool, listener, [3], group=1)
    assert pool.reset()
    assert heard(listener) == [("cleared", [0, 0, 1], [4, 5, 3])]


def test_refused_calls_are_not_reported(pool: BlockPool, listener: Listener) -> None:
    ids = pool.take(1)
    heard(listener)
    for wrong in (lambda: pool.take(9), lambda: pool.release(int_array([3])), lambda: pool.hold(int_array([4]))):
        with pytest.raises(BlockPoolError):
            wrong()
    assert not pool.reset()
    assert heard(listener) == []
    pool.release(ids)


def test_every_observer_gets_every_report(pool: BlockPool, listener: Listener) -> None:
    other = Listener()
    pool.observers = (listener, PoolObserver(), other)
    ids = pool.take(2)
    pool.keys.register(0, ids, int_array([4, 5]))
    pool.release(ids)
    pool.hold(ids)
    pool.release(ids)
    pool.take(5)
    told = heard(listener)
    assert told == heard(other)
    assert {what for what, *_ in told} == {"taken", "stored", "freed", "held", "evicted", "removed"}
