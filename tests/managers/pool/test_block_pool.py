"""The block pool: who holds a block, under which prefixes it is keyed, and which block goes next."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvhybrid.managers.arrays import int_array
from kvhybrid.managers.eviction.base import ReuseOrderError
from kvhybrid.managers.eviction.lru import LRU
from kvhybrid.managers.pool.block_pool import BlockPool, BlockPoolError
from tests.counting import counting
from tests.managers.pool.small_pools import ROOM, everything, ids, key, pool_of, served

# ---- a new pool


def test_a_new_pool_hands_out_blocks_from_one_upwards_and_never_the_null_block() -> None:
    pool = pool_of(6)
    assert pool.free_queue() == [1, 2, 3, 4, 5]
    assert pool.take(3).tolist() == [1, 2, 3]
    assert pool.take(2).tolist() == [4, 5]
    assert pool.num_free == 0


def test_the_null_block_alone_is_a_pool_of_nothing() -> None:
    pool = BlockPool(1, 1)
    assert (pool.num_free, pool.usage, pool.free_queue()) == (0, 0.0, [])


@pytest.mark.parametrize("num_blocks", [0, -3])
def test_a_pool_without_a_null_block_is_refused(num_blocks: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        BlockPool(num_blocks, 1)


def test_usage_counts_held_blocks_and_leaves_the_null_block_out() -> None:
    pool = pool_of(11)
    taken = pool.take(4)
    assert pool.usage == pytest.approx(0.4)
    key(pool, int(taken[0]), 1)
    pool.release(taken)
    assert pool.usage == 0.0, "a cached free block is not in use"


def test_taking_nothing_changes_nothing() -> None:
    pool = pool_of(4)
    before = everything(pool)
    assert pool.take(0).tolist() == []
    pool.release(ids())
    pool.hold(ids())
    assert everything(pool) == before


# ---- the order of the free queue


def test_freed_blocks_without_a_key_go_to_the_front_in_the_order_given() -> None:
    pool = pool_of(7)
    pool.take(4)
    pool.release(ids(4, 2, 3))
    assert pool.free_queue() == [4, 2, 3, 5, 6]


def test_freed_blocks_with_a_key_go_to_the_back_in_the_order_given() -> None:
    pool = pool_of(7)
    pool.take(4)
    for block in (1, 2, 3):
        key(pool, block, block)
    pool.release(ids(3, 2, 1))
    assert pool.free_queue() == [5, 6, 3, 2, 1]


def test_one_release_sorts_its_blocks_to_both_ends() -> None:
    pool = pool_of(8)
    pool.take(5)
    key(pool, 2, 2)
    key(pool, 4, 4)
    pool.release(ids(5, 4, 3, 2, 1))
    assert pool.free_queue() == [5, 3, 1, 6, 7, 4, 2]


def test_a_later_release_goes_before_the_front_and_behind_the_back() -> None:
    pool = pool_of(6)
    pool.take(5)
    key(pool, 1, 1)
    key(pool, 2, 2)
    pool.release(ids(4, 2))
    pool.release(ids(3, 1))
    assert pool.free_queue() == [3, 4, 2, 1]


def test_a_shared_block_is_free_only_when_its_last_holder_lets_go() -> None:
    pool = pool_of(4)
    taken = pool.take(2)
    pool.hold(taken[:1])
    pool.release(taken)
    assert (pool.refs[1], pool.free_queue()) == (1, [2, 3])
    pool.release(ids(1))
    assert pool.free_queue() == [1, 2, 3]


def test_a_hit_takes_a_cached_block_out_of_the_middle_of_the_queue() -> None:
    pool = pool_of(5)
    taken = pool.take(4)
    pool.keys.register(0, taken, int_array([1, 2, 3, 4]))
    pool.release(taken)
    pool.hold(ids(3))
    assert pool.free_queue() == [1, 2, 4]
    assert (pool.refs[3], pool.num_free, served(pool, 3)) == (1, 3, 3)


def test_eviction_is_lazy_a_key_goes_when_the_block_is_handed_out() -> None:
    pool = pool_of(4)
    taken = pool.take(2)
    pool.keys.register(0, taken, ids(1, 2))
    pool.release(taken[::-1])
    assert (served(pool, 1), served(pool, 2)) == (1, 2)
    assert pool.take(2).tolist() == [3, 2], "the unkeyed block first"
    assert (served(pool, 1), served(pool, 2)) == (1, 0)
    assert pool.evictions.tolist() == [1]


def test_evictions_are_counted_for_the_group_that_lost_the_key() -> None:
    pool = pool_of(4, num_groups=2)
    pool.take(3)
    key(pool, 1, 1, group=0)
    key(pool, 2, 1, group=1)
    key(pool, 3, 2, group=1)
    pool.release(ids(1, 2, 3))
    pool.take(3)
    assert pool.evictions.tolist() == [1, 2]


# ---- evicting


def test_evicting_a_free_block_keeps_its_place_in_the_queue() -> None:
    pool = pool_of(5)
    taken = pool.take(4)
    pool.keys.register(0, taken, int_array([1, 2, 3, 4]))
    pool.release(taken)
    pool.evict([2])
    assert pool.free_queue() == [1, 2, 3, 4]
    assert served(pool, 2) == 0
    assert pool.take(2).tolist() == [1, 2]
    assert pool.evictions.tolist() == [1], "block 2 had nothing left to lose"


def test_evicting_a_held_block_leaves_it_held() -> None:
    pool = pool_of(4)
    pool.take(1)
    key(pool, 1, 1)
    pool.evict([1, 1, 0])
    assert (int(pool.refs[1]), served(pool, 1)) == (1, 0)
    pool.release(ids(1))
    assert pool.free_queue() == [1, 2, 3], "without a key it is reused first"


def test_counts_by_group_tell_cached_from_reusable() -> None:
    pool = pool_of(6, num_groups=2)
    pool.take(4)
    for block, group in ((1, 0), (2, 1), (3, 1)):
        key(pool, block, block, group)
    pool.release(ids(3))
    assert pool.counts.tolist() == [[1, 1], [1, 2], [0, 1], [0, 0]], "held, keyed, of them free, evicted"


# ---- reset


def test_reset_drops_every_key_and_keeps_the_order() -> None:
    pool = pool_of(5)
    taken = pool.take(3)
    pool.keys.register(0, taken, ids(1, 2, 3))
    key(pool, 1, 9)
    pool.release(taken[::-1])
    order = pool.free_queue()
    assert pool.reset()
    assert pool.free_queue() == order
    assert not pool.keys.numbers_in_use().any()
    assert all(pool.keys.of(block) == [] for block in range(5))
    assert pool.take(4).tolist() == order
    assert pool.evictions.tolist() == [0]


def test_reset_with_a_held_block_does_nothing() -> None:
    pool = pool_of(5)
    taken = pool.take(3)
    pool.keys.register(0, taken, ids(1, 2, 3))
    pool.release(taken[1:])
    before = everything(pool)
    assert not pool.reset()
    assert everything(pool) == before


# ---- references that occur in pairs


def test_a_block_that_ends_two_copies_gives_up_two_references() -> None:
    pool = pool_of(6)
    pool.take(3)
    pool.hold(ids(1))
    key(pool, 2, 2)
    pool.release(ids(1, 2, 1, 3))
    assert pool.refs.tolist() == [0] * 6
    assert pool.free_queue() == [1, 3, 4, 5, 2], "each block goes where its last reference went"


def test_pairs_leave_a_block_held_that_another_request_holds() -> None:
    pool = pool_of(4)
    pool.take(1)
    pool.hold(ids(1))
    pool.hold(ids(1))
    pool.release(ids(1, 1))
    assert (int(pool.refs[1]), pool.num_free) == (1, 2)


def test_null_entries_have_no_owner_and_are_skipped() -> None:
    pool = pool_of(4)
    taken = pool.take(2)
    key(pool, 1, 1)
    pool.hold(ids(0, 1, 0))
    assert pool.refs.tolist() == [0, 2, 1, 0]
    pool.release(ids(0, 1, 1))
    pool.release(np.array([[0, taken[1]], [0, 0]], np.int32))
    assert pool.refs.tolist() == [0, 0, 0, 0]
    assert pool.free_queue() == [2, 3, 1]


# ---- misuse

BAD_CALLS: list[tuple[str, Callable[[BlockPool], object], str]] = [
    ("more than are free", lambda pool: pool.take(4), "4 blocks asked for, 3 of 6 are free"),
    ("a block freed twice", lambda pool: pool.release(ids(4)), r"\[4\] are free already"),
    ("one of several freed twice", lambda pool: pool.release(ids(1, 5, 2)), r"\[5\] are free already"),
    ("an id above the pool", lambda pool: pool.release(ids(1, 6)), r"\[6\] are not in this pool of 6"),
    ("a negative id", lambda pool: pool.release(ids(-1)), r"\[-1\] are not in this pool"),
    ("an eviction above the pool", lambda pool: pool.evict([1, 6]), r"\[0, 6\)"),
    ("an eviction of a negative id", lambda pool: pool.evict([-1, 1]), r"\[0, 6\)"),
    ("a block twice in one release", lambda pool: pool.release(ids(1, 1)), "1"),
    ("more references than there are", lambda pool: pool.release(ids(1, 1)), "1"),
]


@pytest.mark.parametrize(("call", "message"), [c[1:] for c in BAD_CALLS], ids=[c[0] for c in BAD_CALLS])
def test_misuse_is_a_clear_error_and_changes_nothing(call: Callable[[BlockPool], object], message: str) -> None:
    pool = pool_of(6)
    pool.take(3)
    key(pool, 1, 1)
    key(pool, 3, 3)
    pool.release(ids(3))
    before = everything(pool)
    with pytest.raises(BlockPoolError, match=message):
        call(pool)
    assert everything(pool) == before


# ---- size


def test_a_pool_of_a_million_blocks_is_flat_arrays() -> None:
    tracemalloc.start()
    try:
        with counting() as count:
            pool = BlockPool(1_000_000, 7)
        _, peak = tracemalloc.get_traced_memory()
        objects = len(tracemalloc.take_snapshot().traces)
    finally:
        tracemalloc.stop()
    assert peak < 50e6
    assert objects < 200, "no object per block"
    assert count.opcodes < 1_000, "no loop over the blocks"
    assert pool.num_free == 999_999
    assert sum(sys.getsizeof(getattr(pool, name)) for name in dir(pool)) < 50e6


def test_taking_and_freeing_half_of_a_large_pool_makes_no_object_per_block() -> None:
    pool = BlockPool(100_000, 1)
    pool.keys.grow(60_000)
    taken = pool.take(50_000)
    pool.keys.register(0, taken, np.arange(1, 50_001, dtype=np.int32))
    tracemalloc.start()
    try:
        pool.release(taken)
        objects = len(tracemalloc.take_snapshot().traces)
    finally:
        tracemalloc.stop()
    assert objects < 200
    assert pool.num_free == 99_999


# ---- against a pool of lists and dicts


class NaivePool:
    """What the pool means, in the plainest words."""

    def __init__(self, num_blocks: int) -> None:
        self.queue = list(range(1, num_blocks))
        self.refs = [0] * num_blocks
        self.owners: dict[tuple[int, int], list[int]] = {}
        """For every key its blocks, the first registered first."""

    def keys_of(self, block: int) -> list[tuple[int, int]]:
        return [key for key, blocks in self.owners.items() if block in blocks]

    def drop_keys(self, block: int) -> None:
        for owned in self.keys_of(block):
            self.owners[owned].remove(block)
            if not self.owners[owned]:
                del self.owners[owned]

    def move_keys(self, source: int, target: int) -> None:
        for owned in self.keys_of(source):
            blocks = self.owners[owned]
            blocks[blocks.index(source)] = target

    def take(self, count: int) -> list[int]:
        taken, self.queue = self.queue[:count], self.queue[count:]
        for block in taken:
            self.drop_keys(block)
            self.refs[block] = 1
        return taken

    def hold(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if not self.refs[block]:
                self.queue.remove(block)
            self.refs[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        front, back = [], []
        for block in blocks:
            self.refs[block] -= 1
            if not self.refs[block]:
                (back if self.keys_of(block) else front).append(block)
        self.queue = front + self.queue + back

    def register(self, key: tuple[int, int], block: int) -> None:
        blocks = self.owners.setdefault(key, [])
        if block not in blocks:
            blocks.append(block)


class PoolMachine(RuleBasedStateMachine):
    """Random calls, each made on the pool and on the naive one."""

    @initialize(num_blocks=st.integers(2, 14), num_groups=st.integers(1, 3))
    def start(self, num_blocks: int, num_groups: int) -> None:
        self.num_groups = num_groups
        self.pool = pool_of(num_blocks, num_groups)
        self.naive = NaivePool(num_blocks)

    def held(self) -> list[int]:
        return [block for block, refs in enumerate(self.naive.refs) if refs]

    def keyed_group(self, block: int) -> int | None:
        keys = self.naive.keys_of(block)
        return keys[0][0] if keys else None

    @rule(share=st.floats(0, 1))
    def take(self, share: float) -> None:
        count = int(share * len(self.naive.queue))
        assert self.pool.take(count).tolist() == self.naive.take(count)

    @rule(data=st.data())
    def hold_what_is_held_or_cached(self, data: st.DataObject) -> None:
        blocks = [b for b in range(1, len(self.naive.refs)) if self.naive.refs[b] or self.naive.keys_of(b)]
        if blocks:
            chosen = data.draw(st.lists(st.sampled_from(blocks), unique=True))
            self.pool.hold(int_array(chosen))
            self.naive.hold(chosen)

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.held()), unique=True))
        self.pool.release(int_array(chosen))
        self.naive.release(chosen)

    @precondition(lambda self: any(refs > 1 for refs in self.naive.refs))
    @rule()
    def release_all_references_of_one_block(self) -> None:
        block = max(range(len(self.naive.refs)), key=lambda b: self.naive.refs[b])
        chosen = [block] * self.naive.refs[block]
        self.pool.release(int_array(chosen))
        self.naive.release(chosen)

    @precondition(lambda self: self.held())
    @rule(data=st.data(), number=st.integers(1, 6), group=st.integers(0, 2))
    def register(self, data: st.DataObject, number: int, group: int) -> None:
        block = data.draw(st.sampled_from(self.held()))
        known = self.keyed_group(block)
        group = group % self.num_groups if known is None else known
        self.pool.keys.register(group, ids(block), ids(number))
        self.naive.register((group, number), block)

    @precondition(lambda self: self.held())
    @rule(data=st.data(), group=st.integers(0, 2))
    def register_a_batch(self, data: st.DataObject, group: int) -> None:
        group %= self.num_groups
        free_of_keys = [b for b in self.held() if self.keyed_group(b) in (None, group)]
        if free_of_keys:
            blocks = data.draw(st.lists(st.sampled_from(free_of_keys), unique=True, max_size=5))
            numbers = data.draw(
                st.lists(st.integers(1, 12), unique=True, min_size=len(blocks), max_size=len(blocks))
            )
            self.pool.keys.register(group, int_array(blocks), int_array(numbers))
            for block, number in zip(blocks, numbers, strict=True):
                self.naive.register((group, number), block)

    @rule()
    def recount(self) -> None:
        self.pool.counts[:3] = 7
        self.pool.recount()

    @precondition(lambda self: len(self.held()) > 1)
    @rule(data=st.data())
    def move_keys(self, data: st.DataObject) -> None:
        source, target = data.draw(st.permutations(self.held()))[:2]
        if not self.naive.keys_of(target):
            self.pool.keys.move(source, target)
            self.naive.move_keys(source, target)

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.integers(0, len(self.naive.refs) - 1), max_size=4))
        self.pool.evict(chosen)
        for block in chosen:
            self.naive.drop_keys(block)

    @rule()
    def reset(self) -> None:
        possible = not self.held()
        assert self.pool.reset() is possible
        if possible:
            self.naive.owners.clear()

    @rule(beyond=st.integers(1, 3))
    def take_too_many(self, beyond: int) -> None:
        with pytest.raises(BlockPoolError):
            self.pool.take(len(self.naive.queue) + beyond)

    def recounted(self) -> list[list[int]]:
        """Per group, blocks that are held (if the pool knows by which group), keyed, and keyed and free."""
        found = [[0] * self.num_groups for _ in range(3)]
        for block in range(1, self.pool.num_blocks):
            group, held = int(self.pool.group_of[block]), bool(self.pool.refs[block])
            keyed = bool(self.naive.keys_of(block))
            if group >= 0:
                found[0][group] += held
                found[1][group] += keyed
                found[2][group] += keyed and not held
        return found

    @invariant()
    def both_agree(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool, naive = self.pool, self.naive
        assert pool.free_queue() == naive.queue
        assert pool.num_free == len(naive.queue)
        assert pool.refs.tolist() == naive.refs
        found = {(g, int(n)): served(pool, int(n), g) for g, n in zip(*pool.keys.index.nonzero(), strict=True)}
        assert found == {key: blocks[0] for key, blocks in naive.owners.items()}
        assert pool.counts[:3].tolist() == self.recounted()
        for block in range(len(naive.refs)):
            assert sorted(pool.keys.of(block)) == sorted(number for _, number in naive.keys_of(block))
            for group, number in naive.keys_of(block):
                assert int(pool.group_of[block]) == group
                assert pool.keys.has(group, block, number)


TestPoolAgainstNaivePool = PoolMachine.TestCase
TestPoolAgainstNaivePool.settings = settings(max_examples=60, stateful_step_count=40)


class Short(LRU):
    """An order of one's own that gives fewer blocks than it is asked for."""

    def pop(self, count: int) -> np.ndarray:
        return super().pop(count)[:1]


def test_an_order_that_gives_too_few_blocks_is_named_and_no_block_is_given_twice() -> None:
    pool = BlockPool(8, 1, Short)
    pool.keys.grow(ROOM)
    held = pool.take(5)
    pool.keys.register(0, held[:4], ids(1, 2, 3, 4))
    pool.release(held)
    with pytest.raises(ReuseOrderError, match=r"test_block_pool\.Short raised ValueError: pop\(3\) gave 1 blocks"):
        pool.take(6)
    assert pool.num_free == 7
    assert not pool.refs.any()
