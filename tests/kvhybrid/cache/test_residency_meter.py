"""How long blocks live, idle and wait to be hit again, with a clock that the test turns."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.cache.residency_meter import Durations, GroupResidency
from kvhybrid.specs import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from tests.kvhybrid.cache.checked_cache import CheckedCache, play
from tests.kvhybrid.cache.setups import Features, features

FULL = FullAttentionSpec(block_size=4)
WINDOW = SlidingWindowSpec(block_size=4, window=5)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def manager_of(clock: Clock, *specs: KVCacheSpec, num_blocks: int) -> KVCacheManager:
    groups = tuple(KVCacheGroup(f"g{g}", spec) for g, spec in enumerate(specs))
    return KVCacheManager(KVCacheConfig(groups, num_blocks), max_model_len=100, residency_clock=clock)


def start(manager: KVCacheManager, num_tokens: int, first: int = 0) -> Request:
    """A request computes all its tokens at once, after what it hits."""
    request = Request(f"r{first}", range(first, first + num_tokens), hasher=manager.hasher)
    manager.new_step_starts()
    found = manager.get_computed_blocks(request)
    assert (
        manager.allocate_slots(request, num_tokens - found.num_tokens, found.num_tokens, found.blocks) is not None
    )
    request.num_computed_tokens, request.status = num_tokens, RequestStatus.RUNNING
    return request


def measures(manager: KVCacheManager) -> list[GroupResidency]:
    assert manager.residency is not None
    return manager.residency


def test_nothing_is_measured_before_a_block_is_lost_or_hit(clock: Clock) -> None:
    manager = manager_of(clock, FULL, num_blocks=10)
    clock.now = 5
    manager.free(start(manager, 9))
    assert measures(manager) == [GroupResidency()]


def test_life_runs_from_handing_out_to_the_new_owner_and_idle_time_from_the_free(clock: Clock) -> None:
    manager = manager_of(clock, FULL, num_blocks=3)
    clock.now = 10
    request = start(manager, 8)
    clock.now = 14
    manager.free(request)
    clock.now = 20
    start(manager, 8, first=100)
    (group,) = measures(manager)
    assert group.life == Durations(count=2, total=20.0, longest=10.0)
    assert group.idle == Durations(count=2, total=12.0, longest=6.0)
    assert group.reuse_gap == Durations()
    assert group.life.mean == 10.0


def test_blocks_that_are_lost_at_different_times_are_measured_each(clock: Clock) -> None:
    manager = manager_of(clock, FULL, num_blocks=3)
    manager.free(start(manager, 8))
    clock.now = 3
    one = start(manager, 4, first=100)
    clock.now = 7
    start(manager, 4, first=200)
    (group,) = measures(manager)
    assert group.life == Durations(count=2, total=3.0 + 7.0, longest=7.0)
    manager.free(one)


def test_a_reuse_gap_runs_from_the_free_to_the_hit(clock: Clock) -> None:
    manager = manager_of(clock, FULL, num_blocks=10)
    clock.now = 1
    request = start(manager, 9)
    clock.now = 4
    manager.free(request)
    clock.now = 9
    start(manager, 9)
    (group,) = measures(manager)
    assert group.reuse_gap == Durations(count=2, total=10.0, longest=5.0)
    assert group.life == Durations()


def test_a_hit_of_held_blocks_has_no_gap(clock: Clock) -> None:
    manager = manager_of(clock, FULL, num_blocks=10)
    start(manager, 9)
    clock.now = 5
    found = Request("second", range(9), hasher=manager.hasher)
    manager.new_step_starts()
    hit = manager.get_computed_blocks(found)
    manager.allocate_slots(found, 1, hit.num_tokens, hit.blocks)
    assert measures(manager)[0].reuse_gap == Durations()


def test_a_hit_ends_idleness_and_not_life(clock: Clock) -> None:
    """Handed out at 0, freed at 2, hit at 5, freed at 6, lost at 16: it lived 16 and idled 10 at the last."""
    manager = manager_of(clock, FULL, num_blocks=3)
    request = start(manager, 5)
    clock.now = 2
    manager.free(request)
    clock.now = 5
    request = start(manager, 5)
    clock.now = 6
    manager.free(request)
    clock.now = 16
    start(manager, 8, first=100)
    (group,) = measures(manager)
    assert group.life == Durations(count=1, total=16.0, longest=16.0)
    assert group.idle == Durations(count=1, total=10.0, longest=10.0)
    assert group.reuse_gap == Durations(count=1, total=3.0, longest=3.0)


def test_groups_are_measured_apart(clock: Clock) -> None:
    """The window's second block is freed early, when the window has left the first behind."""
    manager = manager_of(clock, FULL, WINDOW, num_blocks=9)
    request = start(manager, 8)
    clock.now = 2
    manager.allocate_slots(request, 1)
    clock.now = 10
    manager.free(request)
    clock.now = 12
    start(manager, 16, first=100)
    full, window = measures(manager)
    assert full.life == Durations(count=2, total=24.0, longest=12.0)
    assert full.idle == Durations(count=2, total=4.0, longest=2.0)
    assert window.life == Durations(count=2, total=24.0, longest=12.0)
    assert window.idle == Durations(count=2, total=12.0, longest=10.0)


def test_blocks_without_a_key_are_not_evicted(clock: Clock) -> None:
    manager = manager_of(clock, FULL, num_blocks=3)
    manager.free(start(manager, 3))
    clock.now = 5
    start(manager, 8, first=100)
    assert measures(manager) == [GroupResidency()]


def test_a_dropped_key_ends_no_measured_life(clock: Clock) -> None:
    """`evict_blocks` and a reset take keys by name; evictions are losses to a new owner."""
    manager = manager_of(clock, FULL, num_blocks=3)
    manager.free(start(manager, 8))
    manager.evict_blocks([1])
    manager.reset_prefix_cache()
    start(manager, 8, first=100)
    assert measures(manager) == [GroupResidency()]
    assert manager.stats().groups[0].evictions == 0


def test_without_a_clock_nothing_is_measured() -> None:
    manager = KVCacheManager(KVCacheConfig((KVCacheGroup("g", FULL),), 10), max_model_len=100)
    assert manager.residency is None
    assert manager.block_pool.observers == ()


def test_a_mean_of_nothing_is_nothing() -> None:
    assert Durations().mean == 0.0


@given(features(), st.integers(0, 2**32 - 1))
@settings(max_examples=15)
def test_every_eviction_is_measured_in_random_traffic(setup: Features, seed: int) -> None:
    cache = CheckedCache(setup.build())
    play(cache, seed, 100)
    measured = cache.manager.residency
    assert measured is not None
    assert [group.life.count for group in measured] == [group.evictions for group in cache.manager.stats().groups]
