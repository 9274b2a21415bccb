"""Each invariant, broken by hand in a cache manager that is in order: the check names what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request
from kvhybrid.conformance.invariants import check_backed, check_empty, check_invariants
from kvhybrid.conformance.oracle import check_hit
from kvhybrid.conformance.stage import Stage
from kvhybrid.conformance.violation import Violation
from kvhybrid.managers.arrays import int_array
from kvhybrid.specs import CrossAttentionSpec, FullAttentionSpec, SlidingWindowSpec

Break = Callable[[KVCacheManager], object]


@pytest.fixture
def manager() -> KVCacheManager:
    """Request ``a`` has ended and left keys; ``b`` runs, has adopted two of its blocks and computed 12 tokens.

    The full group is block 1, 2 and 5 of ``b``, the window group, which reads 4 tokens back, 0, 4 and 6.
    """
    groups = (
        KVCacheGroup("full", FullAttentionSpec(block_size=4)),
        KVCacheGroup("window", SlidingWindowSpec(block_size=4, window=4)),
    )
    manager = KVCacheManager(KVCacheConfig(groups, 12), max_model_len=16)
    stage = Stage(manager)
    for name, new in (("a", 8), ("b", 4)):
        stage.play({"do": "submit", "request": name, "tokens": [[0, 9 if name == "a" else 13]]})
        stage.play({"do": "lookup", "request": name})
        stage.play({"do": "allocate", "request": name, "new_tokens": new})
        if name == "a":
            stage.play({"do": "free", "request": name})
    assert [row.tolist() for row in manager.get_block_ids("b")] == [[1, 2, 5], [0, 4, 6]]
    return manager


def put(manager: KVCacheManager, group: int, entry: int, block: int) -> None:
    """Another block in the table of ``b``, with references to match."""
    c, i = manager.coordinator.place[group]
    row = manager.coordinator.tables["b"].tables[c].row(i)
    manager.block_pool.release(row[entry : entry + 1].copy())
    manager.block_pool.refs[block] += block > 0
    row[entry] = block


def key_under_nothing(manager: KVCacheManager) -> None:
    """A key whose number no prefix has."""
    keys = manager.block_pool.keys
    keys.register(0, int_array([7]), int_array([len(manager.coordinator.index) + 1]))


def lose_queue(manager: KVCacheManager) -> None:
    manager.block_pool._next_unused += 1
    manager.block_pool.num_free -= 1


BREAKS: list[tuple[str, Break, str]] = [
    ("a reference too many", lambda m: m.block_pool.refs.__setitem__(7, 1), "block 7 is counted 1 times"),
    ("a reference too few", lambda m: m.block_pool.refs.__setitem__(1, 0), "block 1 is counted 0 times"),
    ("the null block held", lambda m: m.block_pool.refs.__setitem__(0, 1), "block 0 is counted 1 times"),
    ("a block in no place", lose_queue, "block 7 is neither held nor free"),
    ("a wrong count", lambda m: setattr(m.block_pool, "num_free", 3), "is counted as 3 blocks"),
    (
        "a key of no block",
        lambda m: m.block_pool.keys.number_of.__setitem__(1, 0),
        "a key that the block does not",
    ),
    ("a key that leads nowhere", lambda m: m.block_pool.keys.index.__setitem__((0, 1), 0), "cannot be found"),
    ("a block of another group", lambda m: m.block_pool.group_of.__setitem__(1, 1), "the block does not have"),
    ("a key without a prefix", key_under_nothing, "which has no prefix"),
    ("keys without caching", lambda m: setattr(m, "enable_caching", False), "and caching is off"),
    ("a wrong statistic", lambda m: m.block_pool.counts.__setitem__((1, 0), 9), "reports 9 cached blocks"),
    ("a block twice", lambda m: put(m, 0, 2, 1), "in group 0 holds a block twice"),
    ("too long a table", lambda m: setattr(m, "max_model_len", 8), "more entries than the longest request"),
]


@pytest.mark.parametrize(("break_it", "text"), [row[1:] for row in BREAKS], ids=[row[0] for row in BREAKS])
def test_what_is_wrong_is_named(break_it: Break, text: str, manager: KVCacheManager) -> None:
    check_invariants(manager)
    break_it(manager)
    with pytest.raises(Violation, match=text):
        check_invariants(manager)


def request_of(manager: KVCacheManager) -> Request:
    return manager.coordinator.tables["b"].owner


def test_a_step_without_a_block_that_it_reads_or_writes_is_named(manager: KVCacheManager) -> None:
    check_backed(manager, request_of(manager), 8, 12)
    put(manager, 0, 1, 0)
    with pytest.raises(Violation, match=r"has no block at entry 1 of group 0 \(full\)"):
        check_backed(manager, request_of(manager), 8, 12)


def test_slots_for_look_ahead_tokens_are_asked_for(manager: KVCacheManager) -> None:
    with pytest.raises(Violation, match=r"has no block at entry 3 of group 0 \(full\)"):
        check_backed(manager, request_of(manager), 8, 12, lookahead=1)


def test_a_dead_block_that_is_kept_is_named(manager: KVCacheManager) -> None:
    put(manager, 1, 0, 7)
    with pytest.raises(Violation, match=r"keeps entry 0 of group 1 \(sliding_window\), which is dead at 8 tokens"):
        check_backed(manager, request_of(manager), 8, 12)


def test_missing_encoder_blocks_are_named() -> None:
    groups = (
        KVCacheGroup("full", FullAttentionSpec(block_size=4)),
        KVCacheGroup("cross", CrossAttentionSpec(block_size=4)),
    )
    manager = KVCacheManager(KVCacheConfig(groups, 12), max_model_len=16)
    request = Request("r", range(4), num_encoder_tokens=8, hasher=manager.hasher)
    manager.allocate_slots(request, 4, num_encoder_tokens=4)
    with pytest.raises(Violation, match=r"has \[\d\] in group 1 \(cross\) for 8 tokens"):
        check_backed(manager, request, 0, 4)


def test_blocks_and_keys_that_are_left_at_the_end_are_named(manager: KVCacheManager) -> None:
    with pytest.raises(Violation, match="no request is left, but 6 of 11 blocks are free"):
        check_empty(manager)
    manager.free(request_of(manager))
    check_empty(manager)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"hit_tokens": 4}, "a hit of 4 tokens, but by brute force 8"),
        ({"hit_blocks": [[1, 5], [0, 4]]}, r"with blocks \[1, 5\] in group 0, but the pool holds \[1, 2\]"),
        ({"junction": 4}, "a junction at 4, within the hit of 8 tokens"),
    ],
)
def test_a_wrong_hit_is_named(wrong: dict[str, object], text: str, manager: KVCacheManager) -> None:
    request = Request("c", range(9), hasher=manager.hasher)
    right = {"hit_tokens": 8, "hit_blocks": [[1, 2], [0, 4]], "junction": 0}
    check_hit(manager, request, right)
    with pytest.raises(Violation, match=text):
        check_hit(manager, request, {**right, **wrong})


def test_blocks_that_a_pool_does_not_have_are_not_evicted(manager: KVCacheManager) -> None:
    """So that a smaller pool, which the search for a small failing scenario tries, breaks no contract."""
    stage = Stage(manager)
    assert stage.fitted({"do": "evict", "blocks": [3, 12]}) == {"do": "evict", "blocks": [3]}
    assert stage.fitted({"do": "evict", "blocks": [12]}) is None
