"""An order of reuse as a plug-in: its ids may be of any integer type, its mistakes name it and lose no block."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.errors import ManagerError
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.conformance.invariants import check_empty, check_invariants
from kvhybrid.managers.arrays import int_array
from kvhybrid.managers.eviction.base import BlockInfo, ReuseOrder, ReuseOrderError
from kvhybrid.managers.eviction.lru import LRU
from kvhybrid.managers.pool.block_pool import BlockPool
from kvhybrid.specs import FullAttentionSpec, SlidingWindowSpec
from tests.managers.pool.small_pools import ROOM


class Newest(ReuseOrder):
    """Last in, first out, in plain Python; ``gives`` makes its answers."""

    gives: Callable[[list[int]], Any] = staticmethod(list)

    def __init__(self, blocks: Any) -> None:
        super().__init__(blocks)
        self.waiting: deque[int] = deque()

    def append(self, ids: Any, release: int) -> None:
        self.waiting.extend(ids.tolist())

    def remove(self, ids: Any, releases: Any) -> None:
        for block in ids.tolist():
            self.waiting.remove(block)

    def pop(self, count: int) -> Any:
        return type(self).gives([self.waiting.pop() for _ in range(count)])

    def __iter__(self) -> Iterator[int]:
        return iter([type(self).gives([block])[0] for block in reversed(self.waiting)])


def order_that_gives(gives: Callable[[list[int]], Any]) -> type[ReuseOrder]:
    return type("MyOrder", (Newest,), {"gives": staticmethod(gives), "__module__": "somewhere"})


def pool_of(order: type[ReuseOrder]) -> BlockPool:
    """8 usable blocks, 3 of which are cached and free."""
    pool = BlockPool(9, 1, order)
    pool.keys.grow(ROOM)
    held = pool.take(8)
    pool.keys.register(0, held[:3], int_array([1, 2, 3]))
    pool.release(held[:3])
    return pool


INTEGERS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    **{name: lambda ids, name=name: np.array(ids, name) for name in ("i1", "u1", "i2", "u4", "i4", "i8", "u8")},
    "strided": lambda ids: np.repeat(np.array(ids, np.int32), 2)[::2],
}


@pytest.mark.parametrize("gives", INTEGERS.values(), ids=INTEGERS)
def test_ids_of_any_integer_type_are_taken(gives: Callable[[list[int]], Any]) -> None:
    pool = pool_of(order_that_gives(gives))
    assert pool.free_queue() == [3, 2, 1]
    assert all(type(block) is int for block in pool.free_queue())
    taken = pool.take(2)
    assert (taken.dtype, taken.tolist()) == (np.int32, [3, 2])
    assert pool.free_queue() == [1]


def test_an_answer_that_the_order_goes_on_with_is_not_changed_later() -> None:
    room = np.zeros(9, np.int64)

    def gives(ids: list[int]) -> np.ndarray:
        room[: len(ids)] = ids
        return room[: len(ids)]

    pool = pool_of(order_that_gives(gives))
    first = pool.take(1)
    pool.take(2)
    assert first.tolist() == [3]


WRONG: dict[str, tuple[Callable[[list[int]], Any], str]] = {
    "too few": (lambda ids: ids[:1], r"pop\(2\) gave 1 blocks"),
    "too many": (lambda ids: [*ids, 1], r"pop\(2\) gave 3 blocks"),
    "none": (lambda ids: None, r"pop\(2\)"),
    "floats": (lambda ids: [float(block) for block in ids], r"pop\(2\) gave \[3.0, 2.0\]; accepted: integers"),
    "flags": (lambda ids: [True] * len(ids), r"pop\(2\) gave \[True, True\]; accepted: integers"),
    "a block twice": (lambda ids: [ids[0]] * len(ids), r"pop\(2\) gave \[3, 3\]; accepted: blocks of the order"),
    "the null block": (lambda ids: [0, ids[0]], r"pop\(2\) gave \[0, 3\]"),
    "a held block": (lambda ids: [8, ids[0]], r"pop\(2\) gave \[8, 3\]"),
    "no block": (lambda ids: [9, ids[0]], r"pop\(2\) gave \[9, 3\]"),
    "a negative one": (lambda ids: [-1, ids[0]], r"pop\(2\) gave \[-1, 3\]"),
    "a huge one": (lambda ids: [2**32 + 1, ids[0]], r"pop\(2\) gave"),
    "one beyond 64 bits": (lambda ids: [10**30, ids[0]], r"pop\(2\) gave"),
}


@pytest.mark.parametrize(("gives", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_answer_names_the_order_and_loses_no_block(
    gives: Callable[[list[int]], Any], message: str
) -> None:
    pool = pool_of(order_that_gives(gives))
    with pytest.raises(ReuseOrderError, match=rf"the order of reuse somewhere\.MyOrder raised .*: {message}"):
        pool.take(2)
    assert pool.num_free == 3
    assert sorted(pool.free_queue()) == [1, 2, 3]
    assert sorted(pool.take(3).tolist()) == [1, 2, 3]


class MyMistakeError(Exception):
    """What the plug-in raises."""


def raising(base: type[ReuseOrder], call: str, after: bool) -> type[ReuseOrder]:
    """``base``, which raises at the second ``call``, before or after its work."""

    def method(self: Any, *args: Any) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 2 and not after:
            raise MyMistakeError(f"before {call}")
        found = getattr(base, call)(self, *args)
        if self.calls == 2:
            raise MyMistakeError(f"after {call}")
        return found

    return type("MyOrder", (base,), {call: method, "__module__": "somewhere"})


def serve(cache: KVCacheManager, seed: int) -> list[ManagerError]:
    """Requests of a few shared prompts that come and go in a pool too small for them."""
    rng, errors, live = random.Random(seed), [], dict[str, Request]()
    for i in range(120):
        cache.new_step_starts()
        if live and rng.random() < 0.5:
            name = rng.choice(list(live))
            request = live.pop(name)
            try:
                cache.free(request)
            except ManagerError as error:
                errors.append(error)
            check_invariants(cache)
        first = rng.choice((0, 0, 100, 1000 * i))
        request = Request(f"r{i}", range(first, first + rng.randint(5, 20)), hasher=cache.hasher)
        found = cache.get_computed_blocks(request)
        new = request.num_tokens - found.num_tokens
        try:
            if cache.allocate_slots(request, new, found.num_tokens, found.blocks) is not None:
                request.num_computed_tokens, request.status = request.num_tokens, RequestStatus.RUNNING
                live[request.request_id] = request
        except ManagerError as error:
            errors.append(error)
        check_invariants(cache)
    for request in live.values():
        cache.free(request)
    cache.release_copies()
    return errors


@pytest.mark.parametrize("base", [Newest, LRU])
@pytest.mark.parametrize("after", [False, True], ids=["before its work", "after its work"])
@pytest.mark.parametrize("call", ["append", "remove", "pop"])
def test_a_mistake_of_an_order_names_it_and_not_a_manager(call: str, after: bool, base: type[ReuseOrder]) -> None:
    """The call is rolled back, and the pool goes on."""
    groups = (
        KVCacheGroup("full", FullAttentionSpec(block_size=4)),
        KVCacheGroup("window", SlidingWindowSpec(block_size=4, window=9)),
    )
    cache = KVCacheManager(KVCacheConfig(groups, 40), max_model_len=64, track_misses=True)
    for pool in cache.coordinator.pools:
        pool._use_order(raising(base, call, after)(pool.info))
    (error,) = serve(cache, 0)
    place = "after" if after else "before"
    assert f"the order of reuse somewhere.MyOrder raised MyMistakeError: {place} {call}" in str(error)
    assert "Manager" not in str(error)
    assert "rolled back" in str(error)
    assert isinstance(error.__cause__, ReuseOrderError)
    assert isinstance(error.__cause__.__cause__, MyMistakeError)
    check_empty(cache)


# ---- what an order is told


class Listening(LRU):
    """Writes down what it is told."""

    def __init__(self, blocks: BlockInfo) -> None:
        super().__init__(blocks)
        self.released: list[tuple[str | None, bool, list[tuple[int, int]]]] = []
        self.hits: list[list[int]] = []

    def append(self, ids: Any, release: int) -> None:
        super().append(ids, release)
        info = self.blocks
        places = zip(info.group_of[ids].tolist(), info.units(ids).tolist(), strict=True)
        name = getattr(info.request, "request_id", None)
        self.released.append((name, info.is_end, list(places)))

    def hit(self, ids: Any) -> None:
        self.hits.append(ids.tolist())


def listening_cache() -> tuple[KVCacheManager, Listening]:
    groups = (
        KVCacheGroup("full", FullAttentionSpec(block_size=4)),
        KVCacheGroup("window", SlidingWindowSpec(block_size=4, window=5)),
    )
    cache = KVCacheManager(KVCacheConfig(groups, 20), max_model_len=64, eviction=Listening)
    order = cache.block_pool._order
    assert isinstance(order, Listening)
    return cache, order


def test_an_order_knows_group_position_and_request_of_what_is_released() -> None:
    cache, order = listening_cache()
    request = Request("first", range(12), hasher=cache.hasher)
    for num_tokens in (8, 4):
        cache.new_step_starts()
        assert cache.allocate_slots(request, num_tokens) is not None
        request.num_computed_tokens += num_tokens
        request.status = RequestStatus.RUNNING
    assert order.released == [("first", False, [(1, 1)])], "the window has left its first block"
    cache.free(request)
    assert order.released[1:] == [("first", True, [(0, 3), (0, 2), (0, 1)]), ("first", True, [(1, 3), (1, 2)])]


def test_an_order_sees_every_hit_on_free_blocks_and_on_held_ones() -> None:
    cache, order = listening_cache()
    for name, free in (("first", True), ("second", False), ("third", False)):
        cache.new_step_starts()
        request = Request(name, range(9), hasher=cache.hasher)
        hit = cache.get_computed_blocks(request)
        assert cache.allocate_slots(request, 9 - hit.num_tokens, hit.num_tokens, hit.blocks) is not None
        request.num_computed_tokens = 9
        if free:
            cache.free(request)
    assert order.hits == [[1, 2], [5]] * 2, "of the window, only the block that is still read"
    check_invariants(cache)
