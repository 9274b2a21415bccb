"""Deferred frees: a request is done, and its blocks wait until a transfer has read them."""

from __future__ import annotations

import pytest

from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request
from kvhybrid.specs import FullAttentionSpec, SlidingWindowSpec


@pytest.fixture
def manager() -> KVCacheManager:
    groups = (
        KVCacheGroup("full", FullAttentionSpec(block_size=4)),
        KVCacheGroup("window", SlidingWindowSpec(block_size=4, window=6), private_blocks=8),
    )
    return KVCacheManager(KVCacheConfig(groups, 12), max_model_len=100)


def compute(manager: KVCacheManager, name: str, tokens: range) -> Request:
    request = Request(name, tokens, hasher=manager.hasher)
    assert manager.allocate_slots(request, len(tokens)) is not None
    request.num_computed_tokens = len(tokens)
    return request


def test_the_blocks_of_a_finished_request_are_held_until_they_are_given_back(manager: KVCacheManager) -> None:
    request = compute(manager, "a", range(12))
    kept = manager.pop_blocks_for_free(request)
    assert kept is not None
    assert [row.tolist() for row in manager.get_block_ids("a")] == [[], []], "the request itself is gone"
    assert [pool.num_free for pool in manager.coordinator.pools] == [8, 4]
    assert [group.blocks_live for group in manager.stats().groups] == [3, 3]
    assert not manager.reset_prefix_cache()
    manager.free_blocks(kept)
    assert [pool.num_free for pool in manager.coordinator.pools] == [11, 7], "each block went home"
    assert manager.reset_prefix_cache()


def test_they_go_back_in_the_order_of_a_free(manager: KVCacheManager) -> None:
    twin = KVCacheManager(manager.config, max_model_len=100)
    kept = manager.pop_blocks_for_free(compute(manager, "a", range(14)))
    assert kept is not None
    manager.free_blocks(kept)
    twin.free(compute(twin, "a", range(14)))
    for ours, others in zip(manager.coordinator.pools, twin.coordinator.pools, strict=True):
        assert ours.free_queue() == others.free_queue()


def test_another_request_may_hit_them_meanwhile_and_keep_them(manager: KVCacheManager) -> None:
    kept = manager.pop_blocks_for_free(compute(manager, "a", range(12)))
    assert kept is not None
    second = Request("b", range(13), hasher=manager.hasher)
    found = manager.get_computed_blocks(second)
    assert found.num_tokens == 12
    assert manager.allocate_slots(second, 1, 12, found.blocks) is not None
    manager.free_blocks(kept)
    assert [row.tolist() for row in manager.get_block_ids("b")] == [[1, 2, 3, 4], [0, 2, 3, 4]]
    assert manager.block_pool.num_free == 7


def test_giving_them_back_twice_is_an_error(manager: KVCacheManager) -> None:
    kept = manager.pop_blocks_for_free(compute(manager, "a", range(12)))
    assert kept is not None
    manager.free_blocks(kept)
    with pytest.raises(ValueError, match=r"request 'a' are not waiting to be freed"):
        manager.free_blocks(kept)
    assert [pool.num_free for pool in manager.coordinator.pools] == [11, 7]


def test_a_request_that_holds_nothing_has_nothing_to_defer(manager: KVCacheManager) -> None:
    assert manager.pop_blocks_for_free(Request("a", range(4), hasher=manager.hasher)) is None
