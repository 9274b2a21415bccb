"""Orders of reuse: LRU gives back what became free first."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhybrid.managers.arrays import int_array
from kvhybrid.managers.eviction import orders
from kvhybrid.managers.eviction.base import BlockInfo, ReuseOrder
from kvhybrid.managers.eviction.lru import LRU


class Queue:
    """An LRU order with the part that the pool plays: the number of the release that freed each block."""

    def __init__(self, num_blocks: int) -> None:
        self.release_of = np.zeros(num_blocks, np.int32)
        self.order = LRU(BlockInfo(self.release_of, self.release_of, self.release_of))
        self.releases = 0

    def append(self, blocks: list[int]) -> None:
        self.releases += 1
        self.release_of[blocks] = self.releases
        self.order.append(int_array(blocks), self.releases)

    def remove(self, blocks: list[int]) -> None:
        releases = self.release_of[blocks]
        self.release_of[blocks] = 0
        self.order.remove(int_array(blocks), releases)

    def pop(self, count: int) -> list[int]:
        blocks = self.order.pop(count)
        self.release_of[blocks] = 0
        return blocks.tolist()

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)


def test_blocks_are_reused_in_the_order_in_which_they_became_free() -> None:
    order = Queue(10)
    order.append([4, 2])
    order.append([7])
    assert list(order) == [4, 2, 7]
    assert order.pop(2) == [4, 2]
    assert order.pop(1) == [7]


def test_an_adopted_block_is_skipped_and_may_come_back_at_the_end() -> None:
    order = Queue(10)
    order.append([1, 2, 3])
    order.remove([2])
    assert list(order) == [1, 3]
    order.append([2])
    assert order.pop(3) == [1, 3, 2]


def test_part_of_a_run_can_be_taken() -> None:
    order = Queue(10)
    order.append([1, 2, 3, 4])
    order.remove([2])
    assert order.pop(2) == [1, 3]
    assert list(order) == [4]


def test_popping_nothing_gives_nothing() -> None:
    order = Queue(4)
    assert order.pop(0) == []
    order.append([1])
    order.remove([1])
    assert order.pop(0) == []
    assert list(order) == []


def test_blocks_that_come_and_go_leave_nothing_behind() -> None:
    order = Queue(8)
    order.append([5])
    for _ in range(5000):
        order.append([1, 2, 3])
        order.remove([1, 2, 3])
    assert list(order) == [5]
    assert len(order.order._runs) < 1000, "stale runs are dropped now and then"


@given(
    st.lists(st.tuples(st.sampled_from(["append", "remove", "pop"]), st.lists(st.integers(0, 11))), max_size=60)
)
def test_lru_is_a_queue_from_whose_middle_one_can_take(calls: list[tuple[str, list[int]]]) -> None:
    order, queue = Queue(12), list[int]()
    for call, numbers in calls:
        if call == "append":
            added = [b for b in dict.fromkeys(numbers) if b not in queue]
            if added:
                order.append(added)
                queue.extend(added)
        elif call == "remove":
            gone = [b for b in dict.fromkeys(numbers) if b in queue]
            order.remove(gone)
            queue = [b for b in queue if b not in gone]
        else:
            count = min(len(numbers), len(queue))
            assert order.pop(count) == queue[:count]
            queue = queue[count:]
        assert list(order) == queue


def test_orders_are_found_by_name_or_by_path() -> None:
    assert orders.get("lru") is orders.find("lru") is LRU
    assert orders.find("kvhybrid.managers.eviction.lru:LRU") is LRU
    assert issubclass(LRU, ReuseOrder)


def test_an_unknown_order_names_the_accepted_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown order of reuse 'mru'; accepted: .*lru, .*module:Class"):
        orders.find("mru")
