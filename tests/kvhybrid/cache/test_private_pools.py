"""A group with a pool of its own: its blocks are allocated from it and returned to it."""

from __future__ import annotations

import pytest

from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.conformance.invariants import check_invariants
from kvhybrid.conformance.pool_keys import pool_of
from kvhybrid.specs import CrossAttentionSpec, FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec
from tests.kvhybrid.cache.snapshots import APART, page_copies, page_rows

FULL = FullAttentionSpec(block_size=4)
WINDOW = SlidingWindowSpec(block_size=4, window=5)


def manager_of(
    *groups: tuple[KVCacheSpec, int | None], num_blocks: int = 20, unit: int | None = None, **options: object
) -> KVCacheManager:
    """A manager of (spec, private blocks) groups."""
    made = tuple(KVCacheGroup(f"g{g}", spec, private_blocks=private) for g, (spec, private) in enumerate(groups))
    config = KVCacheConfig(made, num_blocks, hash_block_size=unit)
    return KVCacheManager(config, max_model_len=100, **options)  # type: ignore[arg-type]


def request_of(manager: KVCacheManager, num_tokens: int, name: str = "r", **options: int) -> Request:
    return Request(name, range(num_tokens), hasher=manager.hasher, **options)  # type: ignore[arg-type]


def run(manager: KVCacheManager, request: Request, new: int, **options: object) -> bool:
    """One step of a request: look up and adopt if it is new, then ``new`` tokens."""
    manager.new_step_starts()
    found = manager.get_computed_blocks(request) if not request.num_computed_tokens else None
    hit = found.num_tokens if found else 0
    blocks = manager.allocate_slots(request, new, hit, found.blocks if found else None, **options)  # type: ignore[arg-type]
    check_invariants(manager)
    if blocks is None:
        return False
    request.num_computed_tokens += hit + new
    request.status = RequestStatus.RUNNING
    return True


def free_counts(manager: KVCacheManager) -> list[int]:
    return [pool.num_free for pool in manager.coordinator.pools]


def test_only_groups_with_private_blocks_get_a_pool() -> None:
    manager = manager_of((FULL, None), (WINDOW, 8), (FULL, None), (WINDOW, 5))
    assert [pool.num_blocks for pool in manager.coordinator.pools] == [20, 8, 5]
    assert pool_of(manager, 0) is pool_of(manager, 2) is manager.block_pool
    assert pool_of(manager, 1) is not pool_of(manager, 3)


def test_blocks_are_allocated_from_the_group_s_pool_and_have_its_ids() -> None:
    manager = manager_of((FULL, None), (WINDOW, 8))
    request = request_of(manager, 9)
    run(manager, request, 9)
    assert [row.tolist() for row in manager.get_block_ids("r")] == [[1, 2, 3], [1, 2, 3]]
    assert page_rows(manager, "r") == [[1, 2, 3], [APART + 1, APART + 2, APART + 3]]
    assert free_counts(manager) == [16, 4]


def test_blocks_of_three_pools_freed_in_one_call_return_to_their_own_pool() -> None:
    manager = manager_of((FULL, None), (WINDOW, 8), (FULL, 12))
    request, other = request_of(manager, 9), request_of(manager, 4, "other")
    run(manager, request, 9)
    run(manager, other, 4)
    manager.free(request)
    check_invariants(manager)
    assert free_counts(manager) == [18, 6, 10]
    manager.free(other)
    check_invariants(manager)
    assert free_counts(manager) == [19, 7, 11]


def test_dead_blocks_of_a_window_return_to_its_pool_while_the_request_runs() -> None:
    manager = manager_of((FULL, None), (WINDOW, 8))
    request = request_of(manager, 13)
    run(manager, request, 12)
    run(manager, request, 1)
    assert page_rows(manager, "r")[1][:2] == [0, 0]
    assert free_counts(manager) == [15, 5]


def test_a_full_private_pool_refuses_while_the_shared_one_has_room() -> None:
    manager = manager_of((FULL, None), (WINDOW, 3))
    assert not run(manager, request_of(manager, 12), 12)
    assert free_counts(manager) == [19, 2]
    assert manager.stats().refusals == 1
    assert run(manager, request_of(manager, 8), 8)


def test_a_full_shared_pool_refuses_while_the_private_one_has_room() -> None:
    manager = manager_of((FULL, None), (WINDOW, 30), num_blocks=3)
    assert not run(manager, request_of(manager, 12), 12)
    assert free_counts(manager) == [2, 29]
    assert run(manager, request_of(manager, 8), 8)


@pytest.mark.parametrize(("private", "fits"), [(6, False), (7, True)])
def test_the_whole_request_must_fit_in_each_pool(private: int, fits: bool) -> None:
    manager = manager_of((FULL, None), (FULL, private))
    assert run(manager, request_of(manager, 24), 4, full_sequence_must_fit=True) is fits


def test_watermark_and_reserve_are_of_the_shared_pool() -> None:
    manager = manager_of((FULL, None), (FULL, 3), num_blocks=20, watermark=0.5)
    assert run(manager, request_of(manager, 8), 8, has_scheduled_reqs=True)
    assert free_counts(manager) == [17, 0]
    assert not run(manager_of((FULL, None), (FULL, 9), watermark=0.9), request_of(manager, 8), 8)


def test_usage_is_of_the_shared_pool() -> None:
    manager = manager_of((FULL, None), (FULL, 4), num_blocks=11)
    run(manager, request_of(manager, 12), 12)
    assert manager.usage == pytest.approx(0.3)
    assert manager.num_free_blocks == 7
    stats = manager.stats()
    assert (stats.num_blocks, stats.blocks_free) == (10, 7)
    assert [group.blocks_live for group in stats.groups] == [3, 3]
    assert [group.blocks_cached for group in stats.groups] == [3, 3]


def test_a_hit_spans_the_pools() -> None:
    manager = manager_of((FULL, None), (WINDOW, 8))
    first, second = request_of(manager, 9, "first"), request_of(manager, 9, "second")
    run(manager, first, 9)
    manager.free(first)
    found = manager.get_computed_blocks(second)
    assert found.num_tokens == 8
    assert found.blocks.get_block_ids() == ([1, 2], [0, 2])
    run(manager, second, 1)
    assert free_counts(manager) == [16, 5]


def test_reuse_in_the_private_pool_cuts_the_joint_hit() -> None:
    manager = manager_of((FULL, None), (FULL, 4), track_misses=True)
    first = request_of(manager, 9, "first")
    run(manager, first, 9)
    manager.free(first)
    other = Request("other", range(100, 105), hasher=manager.hasher)
    run(manager, other, 5)
    found = manager.get_computed_blocks(request_of(manager, 9, "again"))
    assert found.blocks.own_tokens[0] == 8
    assert found.num_tokens < 8
    assert manager.stats().groups[1].evictions == 1
    assert manager.stats().groups[0].evictions == 0


def test_equal_specs_in_different_pools_keep_their_own_keys() -> None:
    manager = manager_of((FULL, None), (FULL, 8))
    run(manager, request_of(manager, 9), 9)
    manager.evict_blocks([1])
    shared, private = manager.coordinator.pools
    assert not shared.keys.number_of[1]
    assert private.keys.number_of[1], "the block of the same id in the private pool keeps its key"


def test_a_copy_stays_within_its_pool() -> None:
    """A hit inside a block: each group copies its last block, in its own pool."""
    manager = manager_of((FullAttentionSpec(block_size=8), None), (MambaSpec(block_size=8), 9), unit=4)
    first, second = request_of(manager, 14, "first"), request_of(manager, 14, "second")
    run(manager, first, 8)
    run(manager, first, 4)
    run(manager, first, 2)
    manager.release_copies()
    check_invariants(manager)
    run(manager, second, 2)
    copies = page_copies(manager)
    assert [(source // APART, target // APART) for source, target in copies] == [(0, 0), (1, 1)]
    manager.release_copies()
    check_invariants(manager)
    manager.free(first)
    manager.free(second)
    assert free_counts(manager) == [19, 8]


def test_a_reset_waits_for_every_pool_and_clears_every_pool() -> None:
    manager = manager_of((FULL, None), (WINDOW, 8))
    request = request_of(manager, 9)
    run(manager, request, 9)
    assert not manager.reset_prefix_cache()
    manager.free(request)
    assert manager.reset_prefix_cache()
    assert manager.get_computed_blocks(request_of(manager, 9, "again")).num_tokens == 0
    for pool in manager.coordinator.pools:
        assert not pool.keys.index.any()
    check_invariants(manager)


def test_a_reset_does_nothing_while_only_a_private_block_is_held() -> None:
    """The encoder's blocks alone are held: the shared pool is all free, and keeps its keys."""
    manager = manager_of((FULL, None), (CrossAttentionSpec(block_size=4), 8))
    first = request_of(manager, 9, "first")
    run(manager, first, 9)
    manager.free(first)
    private = manager.coordinator.pools[1]
    held = private.take(1)
    assert not manager.reset_prefix_cache()
    assert manager.block_pool.keys.number_of.any()
    private.release(held)
    assert manager.reset_prefix_cache()


def test_all_groups_may_be_private() -> None:
    manager = manager_of((FULL, 8), (WINDOW, 8))
    run(manager, request_of(manager, 9), 9)
    assert manager.usage == 0.0
    assert free_counts(manager) == [19, 4, 4]


def test_an_encoder_s_blocks_may_be_private() -> None:
    manager = manager_of((FULL, None), (CrossAttentionSpec(block_size=4), 4))
    assert not run(manager, request_of(manager, 4, num_encoder_tokens=13), 4, num_encoder_tokens=13)
    assert run(manager, request_of(manager, 4, num_encoder_tokens=12), 4, num_encoder_tokens=12)
    assert free_counts(manager) == [18, 0]
