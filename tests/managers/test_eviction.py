"""Orders of reuse: LRU gives back what became free first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhybrid.managers.arrays import int_array
from kvhybrid.managers.eviction import ORDERS, ReuseOrder, reuse_order
from kvhybrid.managers.eviction.lru import LRU


def test_blocks_are_reused_in_the_order_in_which_they_became_free() -> None:
    order = LRU(10)
    order.append(int_array([4, 2]))
    order.append(int_array([7]))
    assert list(order) == [4, 2, 7]
    assert order.pop(2).tolist() == [4, 2]
    assert order.pop(1).tolist() == [7]


def test_an_adopted_block_is_skipped_and_may_come_back_at_the_end() -> None:
    order = LRU(10)
    order.append(int_array([1, 2, 3]))
    order.remove(int_array([2]))
    assert list(order) == [1, 3]
    order.append(int_array([2]))
    assert order.pop(3).tolist() == [1, 3, 2]


def test_part_of_a_run_can_be_taken() -> None:
    order = LRU(10)
    order.append(int_array([1, 2, 3, 4]))
    order.remove(int_array([2]))
    assert order.pop(2).tolist() == [1, 3]
    assert list(order) == [4]


def test_popping_nothing_gives_nothing() -> None:
    order = LRU(4)
    assert order.pop(0).tolist() == []
    order.append(int_array([1]))
    order.remove(int_array([1]))
    assert order.pop(0).tolist() == []
    assert list(order) == []


def test_blocks_that_come_and_go_leave_nothing_behind() -> None:
    order = LRU(8)
    order.append(int_array([5]))
    for _ in range(5000):
        order.append(int_array([1, 2, 3]))
        order.remove(int_array([1, 2, 3]))
    assert list(order) == [5]
    assert len(order._runs) < 1000, "stale runs are dropped now and then"


@given(
    st.lists(st.tuples(st.sampled_from(["append", "remove", "pop"]), st.lists(st.integers(0, 11))), max_size=60)
)
def test_lru_is_a_queue_from_whose_middle_one_can_take(calls: list[tuple[str, list[int]]]) -> None:
    order, queue = LRU(12), list[int]()
    for call, numbers in calls:
        if call == "append":
            added = [b for b in dict.fromkeys(numbers) if b not in queue]
            if added:
                order.append(int_array(added))
                queue.extend(added)
        elif call == "remove":
            gone = [b for b in dict.fromkeys(numbers) if b in queue]
            order.remove(int_array(gone))
            queue = [b for b in queue if b not in gone]
        else:
            count = min(len(numbers), len(queue))
            assert order.pop(count).tolist() == queue[:count]
            queue = queue[count:]
        assert list(order) == queue


def test_orders_are_found_by_name_or_by_path() -> None:
    assert ORDERS["lru"] == "kvhybrid.managers.eviction.lru:LRU"
    assert reuse_order("lru") is LRU
    assert reuse_order("kvhybrid.managers.eviction.lru:LRU") is LRU
    assert issubclass(LRU, ReuseOrder)


def test_an_unknown_order_names_the_accepted_ones() -> None:
    with pytest.raises(ValueError, match="unknown eviction 'mru'; accepted: lru"):
        reuse_order("mru")
