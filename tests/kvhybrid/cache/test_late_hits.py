"""A hit that is adopted late: refused once a block of it no longer has the key of its place and its group."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from kvhybrid.cache.blocks import ComputedBlocks
from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.errors import StaleHitError
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.conformance.pool_keys import keys_of, pool_of
from kvhybrid.conformance.traffic import Traffic
from kvhybrid.managers.arrays import int_array
from kvhybrid.scenarios.player import STARTING
from kvhybrid.specs import FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec
from tests.kvhybrid.cache.checked_cache import CheckedCache
from tests.kvhybrid.cache.setups import Features, features
from tests.kvhybrid.cache.snapshots import snapshot

FULL = FullAttentionSpec(block_size=4)
WINDOW = SlidingWindowSpec(block_size=4, window=9)
STATE = MambaSpec(block_size=4)


def manager_of(
    *specs: KVCacheSpec, num_blocks: int = 20, unit: int | None = None, private: int = 0
) -> KVCacheManager:
    groups = tuple(KVCacheGroup(f"g{g}", spec, private_blocks=private or None) for g, spec in enumerate(specs))
    return KVCacheManager(KVCacheConfig(groups, num_blocks, hash_block_size=unit), max_model_len=100)


def request_of(manager: KVCacheManager, name: str, num_tokens: int, first: int = 0) -> Request:
    return Request(name, range(first, first + num_tokens), hasher=manager.hasher)


def compute(manager: KVCacheManager, name: str, *chunks: int, more: int = 0, first: int = 0) -> Request:
    """A request without look-up, computed in ``chunks`` but for its last ``more`` tokens."""
    request = request_of(manager, name, sum(chunks) + more, first)
    for chunk in chunks:
        manager.new_step_starts()
        assert manager.allocate_slots(request, chunk) is not None
        manager.release_copies()
        request.num_computed_tokens += chunk
        request.status = RequestStatus.RUNNING
    manager.new_step_starts()
    return request


def look_up(manager: KVCacheManager, num_tokens: int, tokens_hit: int) -> tuple[Request, ComputedBlocks]:
    request = request_of(manager, "late", num_tokens)
    found = manager.get_computed_blocks(request)
    assert found.num_tokens == tokens_hit
    return request, found


def adopt(manager: KVCacheManager, late: tuple[Request, ComputedBlocks]) -> None:
    request, found = late
    assert manager.allocate_slots(request, 1, found.num_tokens, found.blocks) is not None


def assert_stale(manager: KVCacheManager, late: tuple[Request, ComputedBlocks]) -> None:
    before = snapshot(manager)
    with pytest.raises(StaleHitError, match="'late': the hit is out of date"):
        adopt(manager, late)
    assert snapshot(manager) == before


def test_a_block_that_was_reused_for_another_place_of_the_same_prefix() -> None:
    """One of two places has another block now, and the other place has the first one's."""
    manager = manager_of(FULL, num_blocks=4)
    manager.free(compute(manager, "a", 8))
    late = look_up(manager, 9, 8)
    manager.evict_blocks([1, 2])
    manager.block_pool.take(1)
    again = compute(manager, "a", 8)
    assert manager.get_block_ids("a")[0].tolist() == [2, 1]
    assert_stale(manager, late)
    manager.free(again)
    assert_stale(manager, late)


def test_blocks_that_came_back_to_their_places_are_good() -> None:
    manager = manager_of(FULL, num_blocks=4)
    manager.free(compute(manager, "a", 8))
    late = look_up(manager, 9, 8)
    manager.free(compute(manager, "stranger", 12, first=500))
    compute(manager, "b", 8)
    assert manager.get_block_ids("b")[0].tolist() == late[1].blocks.get_block_ids()[0]
    adopt(manager, late)


def test_blocks_of_the_same_prefix_that_changed_places() -> None:
    """The set of numbers is the same as before."""
    manager = manager_of(FULL, num_blocks=3)
    manager.free(compute(manager, "a", 8))
    late = look_up(manager, 9, 8)
    manager.evict_blocks([1, 2])
    again = compute(manager, "a", 8)
    assert manager.get_block_ids("a")[0].tolist() == [2, 1]
    assert_stale(manager, late)
    manager.free(again)
    assert_stale(manager, late)


def test_blocks_of_the_same_prefix_that_changed_groups() -> None:
    manager = manager_of(FULL, WINDOW, num_blocks=3)
    manager.free(compute(manager, "a", 4))
    late = look_up(manager, 5, 4)
    first, second = (row[0] for row in late[1].blocks.get_block_ids())
    pool = manager.block_pool
    manager.evict_blocks([first, second])
    number = manager.coordinator.numbers(late[0])[:1]
    pool.keys.register(0, int_array([second]), number)
    pool.keys.register(1, int_array([first]), number)
    assert_stale(manager, late)


def test_a_block_that_has_its_place_again_but_holds_less_of_it() -> None:
    """Its tokens after the key's end are another request's."""
    wide = FullAttentionSpec(block_size=8)
    manager = manager_of(wide, MambaSpec(block_size=8), num_blocks=3, unit=4)
    manager.free(compute(manager, "a", 8))
    late = look_up(manager, 9, 8)
    block = late[1].blocks.get_block_ids()[0][0]
    manager.evict_blocks([block])
    number = manager.coordinator.numbers(late[0])[:1]
    manager.block_pool.keys.register(0, int_array([block]), number)
    assert_stale(manager, late)


@pytest.mark.parametrize("lost", ["evicted", "reset", "handed out", "handed out and keyed"])
@pytest.mark.parametrize("private", [0, 8])
@pytest.mark.parametrize("specs", [(FULL,), (FULL, WINDOW), (FULL, STATE)], ids=["full", "window", "state"])
def test_a_block_that_lost_its_key(specs: tuple[KVCacheSpec, ...], private: int, lost: str) -> None:
    manager = manager_of(*specs, num_blocks=8, private=private)
    manager.free(compute(manager, "a", 8))
    late = look_up(manager, 9, 8)
    if lost == "evicted":
        blocks = late[1].blocks.get_block_ids()
        manager.evict_blocks([blocks[-1][-1]], len(specs) - 1)
    elif lost == "reset":
        assert manager.reset_prefix_cache()
    else:
        numbers = manager.coordinator.numbers(request_of(manager, "other", 4, 900))
        for g in range(len(specs)):
            pool = pool_of(manager, g)
            taken = pool.take(pool.num_free)
            if lost == "handed out and keyed":
                pool.keys.register(g, taken[:1], numbers)
            pool.release(taken)
    assert_stale(manager, late)


def test_a_held_block_that_lost_its_key() -> None:
    manager = manager_of(FULL)
    compute(manager, "a", 8)
    late = look_up(manager, 9, 8)
    manager.evict_blocks([1])
    assert_stale(manager, late)


def test_a_state_whose_key_moved_to_a_copy() -> None:
    """The request that wrote it goes on in the block, and the copy keeps the state."""
    manager = manager_of(FullAttentionSpec(block_size=8), MambaSpec(block_size=8), unit=4)
    writer = compute(manager, "a", 12, more=1)
    late = look_up(manager, 13, 12)
    assert manager.allocate_slots(writer, 1) is not None
    assert manager.take_copies()
    assert_stale(manager, late)


def test_a_duplicate_that_took_over_is_found_by_a_new_look_up_only() -> None:
    manager = manager_of(FULL)
    first, second = compute(manager, "a", 8), compute(manager, "b", 8)
    late = look_up(manager, 9, 8)
    manager.free(first)
    manager.evict_blocks([1, 2])
    assert_stale(manager, late)
    assert manager.get_computed_blocks(late[0]).blocks.get_block_ids() == ([3, 4],)
    manager.free(second)


def test_a_hit_is_good_as_long_as_its_blocks_are() -> None:
    """Held, freed, with a duplicate, or keyed for more of its tail."""
    wide = FullAttentionSpec(block_size=8)
    manager = manager_of(wide, MambaSpec(block_size=8), unit=4)
    writer = compute(manager, "a", 12, 1, more=3)
    late = look_up(manager, 13, 12)
    assert late[1].blocks.get_block_ids()[0] == [1, 2]
    manager.new_step_starts()
    assert manager.allocate_slots(writer, 3) is not None, "block 2 is full, and keyed for all of its tokens too"
    writer.num_computed_tokens = 16
    manager.new_step_starts()
    compute(manager, "b", 12)
    manager.free(writer)
    adopt(manager, late)


def test_a_hit_of_another_request_or_cache_is_refused() -> None:
    manager, other = manager_of(FULL), manager_of(FULL)
    compute(manager, "a", 8)
    compute(other, "a", 8)
    request, found = look_up(manager, 9, 8)
    with pytest.raises(ValueError, match="'late': new_computed_blocks is a hit of another request"):
        manager.allocate_slots(request_of(manager, "late", 9), 1, 8, found.blocks)
    with pytest.raises(ValueError, match="'late': new_computed_blocks is a hit of another cache"):
        other.allocate_slots(request, 1, 8, found.blocks)
    with pytest.raises(ValueError, match="'late': new_computed_blocks is a hit of another cache"):
        other.allocate_slots(request, 1, 0, found.blocks)


# ---- whatever happens in between


class LateCache(CheckedCache):
    """Contents are checked when a step is executed, so a hit with wrong blocks cannot pass."""

    def assert_adopted(self, request: Request, found: ComputedBlocks) -> None:
        """Every block of the hit can be found under the prefix that it serves, in its group."""
        manager, p = self.manager, found.num_tokens
        unit, numbers = manager.hash_unit, manager.coordinator.numbers(request).tolist()
        for g, (row, size) in enumerate(
            zip(found.blocks.get_block_ids(), manager.config.block_sizes, strict=True)
        ):
            keys, is_state = keys_of(pool_of(manager, g)), manager.config.groups[g].spec.state
            for j, block in enumerate(row):
                whole, need = (j + 1) * size, min((j + 1) * size, p)
                ends = range(need, whole + 1, unit) if need < whole and not is_state else [need]
                served = [numbers[end // unit - 1] for end in ends if end // unit <= len(numbers)]
                assert not block or any(block in keys.blocks.get((g, number), ()) for number in served)


def play_late(setup: Features, seed: int, rounds: int) -> None:
    rng = Random(seed)
    cache = LateCache(setup.build())
    traffic = Traffic(cache, rng)
    for _ in range(rounds):
        for _ in range(rng.randint(0, 8)):
            traffic.act(traffic.draw())
        waiting = [r for r in cache.requests.values() if r.status in STARTING and not r.num_computed_tokens]
        if not waiting:
            continue
        request = rng.choice(waiting)
        cache.play({"do": "lookup", "request": request.request_id})
        found, looked_up = cache.player.looked_up[request.request_id], cache.looked_up
        for _ in range(rng.randint(1, 8)):
            traffic.act(traffic.draw())
        if request.status not in STARTING or cache.player.looked_up.get(request.request_id) is not found:
            continue
        cache.looked_up = looked_up
        step = cache.fitted({"do": "allocate", "request": request.request_id, "new_tokens": rng.randint(1, 12)})
        if step is None:
            continue
        try:
            answer = cache.play(step)
        except StaleHitError:
            event("stale")
            continue
        if found.num_tokens and "new_blocks" in answer:
            cache.assert_adopted(request, found)
            event("adopted late")
    traffic.wind_up()


@given(features(), st.integers(0, 2**32 - 1), st.integers(10, 30))
@settings(max_examples=50)
def test_a_late_hit_is_adopted_with_the_right_blocks_or_refused(setup: Features, seed: int, rounds: int) -> None:
    play_late(setup, seed, rounds)
