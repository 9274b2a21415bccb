"""Cache events alone are enough to know, after every call, which keys are cached and what they mean."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.events import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent
from kvhybrid.cache.extra_keys import LoRA, MediaItem
from kvhybrid.cache.hashing import ROOT
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.conformance.records import Records, keys_in_pools
from kvhybrid.specs import FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec
from tests.kvhybrid.cache.checked_cache import CheckedCache, play
from tests.kvhybrid.cache.records import assert_event_is_true, rehash
from tests.kvhybrid.cache.setups import Features, features

FULL = FullAttentionSpec(block_size=4)
WINDOW = SlidingWindowSpec(block_size=4, window=5)


def manager_of(
    *specs: KVCacheSpec, num_blocks: int = 40, unit: int | None = None, **options: Any
) -> KVCacheManager:
    groups = tuple(KVCacheGroup(f"g{g}", spec) for g, spec in enumerate(specs))
    config = KVCacheConfig(groups, num_blocks, hash_block_size=unit)
    return KVCacheManager(config, max_model_len=100, record_events=True, **options)


def request_of(manager: KVCacheManager, num_tokens: int, name: str = "r", **options: Any) -> Request:
    return Request(name, range(num_tokens), hasher=manager.hasher, **options)


def run(manager: KVCacheManager, request: Request, new: int) -> list[CacheEvent]:
    """One step, and its events."""
    manager.new_step_starts()
    found = manager.get_computed_blocks(request) if not request.num_computed_tokens else None
    hit = found.num_tokens if found else 0
    assert manager.allocate_slots(request, new, hit, found.blocks if found else None) is not None
    manager.release_copies()
    request.num_computed_tokens += hit + new
    request.status = RequestStatus.RUNNING
    return manager.take_events()


def stored_in(events: list[CacheEvent]) -> list[tuple[int, int, int]]:
    """(group, start, end) of every block stored; there is nothing else among ``events``."""
    assert all(isinstance(item, BlockStored) for item in events)
    return [(e.group, b.start, b.end) for e in events if isinstance(e, BlockStored) for b in e.blocks]


# ---- what is told, and what is not


def test_full_blocks_are_stored_once_per_group_with_their_positions() -> None:
    manager = manager_of(FULL, WINDOW)
    assert stored_in(run(manager, request_of(manager, 9), 9)) == [(0, 0, 4), (0, 4, 8), (1, 0, 4), (1, 4, 8)]


def test_events_are_handed_out_once() -> None:
    manager = manager_of(FULL)
    run(manager, request_of(manager, 9), 9)
    assert manager.take_events() == []


def test_a_block_is_stored_when_it_is_filled() -> None:
    manager = manager_of(FULL)
    request = request_of(manager, 9)
    assert stored_in(run(manager, request, 3)) == []
    assert stored_in(run(manager, request, 3)) == [(0, 0, 4)]
    assert stored_in(run(manager, request, 3)) == [(0, 4, 8)]


def test_the_parent_of_a_block_is_the_key_of_the_prefix_before_it() -> None:
    manager = manager_of(FULL)
    (first,) = run(manager, request_of(manager, 13), 13)
    assert isinstance(first, BlockStored)
    keys = [block.key for block in first.blocks]
    assert [block.parent_key for block in first.blocks] == [ROOT, *keys[:-1]]


def test_parents_hold_from_step_to_step_and_over_an_adopted_prefix() -> None:
    manager = manager_of(FULL)
    first = request_of(manager, 9, "first")
    run(manager, first, 9)
    manager.free(first)
    (stored,) = run(manager, request_of(manager, 13, "second"), 5)
    assert isinstance(stored, BlockStored)
    assert [block.parent_key for block in stored.blocks] == [first.block_hashes[1]]


def test_a_block_longer_than_a_key_has_the_parent_before_its_start() -> None:
    manager = manager_of(FullAttentionSpec(block_size=8), FULL)
    request = request_of(manager, 17)
    events = run(manager, request, 17)
    eight = [block for e in events if isinstance(e, BlockStored) and e.group == 0 for block in e.blocks]
    assert [block.parent_key for block in eight] == [ROOT, request.block_hashes[1]]
    assert [len(block.extra_keys) for block in eight] == [2, 2]


EXTRAS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "salt": {"cache_salt": "of a tenant"},
    "lora": {"lora": LoRA("adapter", "path")},
    "media": {"media": [MediaItem("hash", 3, 6), MediaItem("other", 10, 1)]},
    "all": {"cache_salt": "s", "lora": LoRA("a", "p"), "media": [MediaItem("hash", 0, 12)]},
}


@pytest.mark.parametrize("extra", EXTRAS.values(), ids=EXTRAS)
@pytest.mark.parametrize("specs", [(FULL,), (FULL, WINDOW), (FullAttentionSpec(block_size=8), FULL)], ids=len)
def test_tokens_and_extra_keys_give_the_keys(specs: tuple[KVCacheSpec, ...], extra: dict[str, Any]) -> None:
    manager = manager_of(*specs)
    request = request_of(manager, 17, **extra)
    events = run(manager, request, 17)
    blocks = [block for e in events if isinstance(e, BlockStored) for block in e.blocks]
    assert blocks
    for block in blocks:
        assert_event_is_true(block, request, manager.config.hash_unit)
    assert any(any(block.extra_keys) for block in blocks) == bool(extra)


def test_a_listener_can_follow_the_chain_from_events_alone() -> None:
    """Keys are chained: each block's key follows from its parent's, which an earlier event told."""
    manager = manager_of(FULL)
    request = request_of(manager, 21, cache_salt="s")
    (stored,) = run(manager, request, 21)
    assert isinstance(stored, BlockStored)
    parent = ROOT
    for block in stored.blocks:
        parent = rehash(parent, request.token_ids[block.start : block.end], block.extra_keys, 4)
        assert parent == block.key


def sub_block_manager() -> KVCacheManager:
    return manager_of(FullAttentionSpec(block_size=8), MambaSpec(block_size=8), unit=4)


def test_a_partly_filled_block_is_stored_under_the_prefix_that_it_holds() -> None:
    manager = sub_block_manager()
    request = request_of(manager, 14)
    run(manager, request, 8)
    events = run(manager, request, 4)
    assert stored_in(events) == [(0, 8, 12), (1, 8, 12)]
    for stored in events:
        assert isinstance(stored, BlockStored)
        (block,) = stored.blocks
        assert block.key == request.block_hashes[2]
        assert block.parent_key == request.block_hashes[1]
        assert len(block.extra_keys) == 1
        assert_event_is_true(block, request, 4)


def test_a_key_that_moves_to_the_producer_s_copy_is_no_event() -> None:
    """The state after 12 tokens is cached; the producer goes on, so that the key moves to a copy."""
    manager = sub_block_manager()
    request = request_of(manager, 30)
    request.num_prompt_tokens = 14
    records = Records(manager)
    for new in (8, 4):
        manager.new_step_starts()
        manager.allocate_slots(request, new)
        request.num_computed_tokens += new
    request.status = RequestStatus.RUNNING
    records.check()
    before = keys_in_pools(manager)
    manager.new_step_starts()
    manager.allocate_slots(request, 2)
    assert manager.take_copies(), "the state's page is copied"
    assert manager.take_events() == []
    assert keys_in_pools(manager) == before


def test_two_blocks_with_the_same_content_are_one_key() -> None:
    """Two requests compute the same prompt in one step. The key goes when its last block does."""
    manager = manager_of(FULL, num_blocks=6)
    first, second = (request_of(manager, 5, name, skip_reading_prefix_cache=True) for name in ("first", "second"))
    assert stored_in(run(manager, first, 5)) == [(0, 0, 4)]
    assert run(manager, second, 5) == [], "stored already"
    manager.free(first)
    manager.free(second)
    manager.evict_blocks([1])
    assert manager.take_events() == [], "the other block still serves"
    manager.evict_blocks([3])
    assert manager.take_events() == [BlockRemoved(0, (first.block_hashes[0],))]


def test_reuse_and_eviction_remove_keys() -> None:
    manager = manager_of(FULL, num_blocks=4)
    first = request_of(manager, 9)
    run(manager, first, 9)
    manager.free(first)
    other = Request("other", range(100, 105), hasher=manager.hasher)
    removed, stored = run(manager, other, 5)
    assert removed == BlockRemoved(0, (first.block_hashes[1],)), "the tail of the prefix goes first"
    assert stored_in([stored]) == [(0, 0, 4)]
    manager.evict_blocks([1])
    assert manager.take_events() == [BlockRemoved(0, (first.block_hashes[0],))]


def test_an_evicted_block_without_a_key_is_no_event() -> None:
    manager = manager_of(FULL)
    manager.evict_blocks([0, 1, 2])
    assert manager.take_events() == []


def test_a_reset_clears_everything_at_once() -> None:
    manager = manager_of(FULL, WINDOW)
    request = request_of(manager, 9)
    run(manager, request, 9)
    assert not manager.reset_prefix_cache(), "a request holds blocks"
    assert manager.take_events() == []
    manager.free(request)
    assert manager.reset_prefix_cache()
    assert manager.take_events() == [AllBlocksCleared()]


def test_a_reset_of_private_pools_is_one_event_too() -> None:
    config = KVCacheConfig((KVCacheGroup("a", FULL), KVCacheGroup("b", WINDOW, private_blocks=10)), 20)
    manager = KVCacheManager(config, max_model_len=100, record_events=True)
    request = request_of(manager, 9)
    run(manager, request, 9)
    manager.free(request)
    assert manager.reset_prefix_cache()
    assert manager.take_events() == [AllBlocksCleared()]


@pytest.mark.parametrize("options", [{"record_events": False}, {"enable_caching": False}], ids=str)
def test_without_recording_or_without_a_cache_there_are_none(options: dict[str, bool]) -> None:
    config = KVCacheConfig((KVCacheGroup("g", FULL),), 20)
    manager = KVCacheManager(config, max_model_len=100, **{"record_events": True, **options})
    assert run(manager, request_of(manager, 9), 9) == []


# ---- in random traffic


@given(features(), st.integers(0, 2**32 - 1), st.integers(1, 120))
@settings(max_examples=25)
def test_events_rebuild_the_keys_after_every_call(setup: Features, seed: int, actions: int) -> None:
    cache = CheckedCache(setup.build())
    play(cache, seed, actions)
    unit = cache.manager.config.hash_unit
    by_key = {key: request for request in cache.requests.values() for key in request.block_hashes}
    for _, block in cache.records.blocks:
        assert_event_is_true(block, by_key[block.key], unit)
    event(f"{len(cache.records.blocks) // 50 * 50} blocks stored or more")
