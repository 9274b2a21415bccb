"""Whatever is called, in whatever order: no block is lost, counted twice, or read with wrong content."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhybrid.conformance.traffic import Traffic
from tests.kvhybrid.cache.checked_cache import CheckedCache, play
from tests.kvhybrid.cache.setups import Features, features
from tests.kvhybrid.cache.snapshots import snapshot

SEEDS = st.integers(0, 2**32 - 1)
ACTIONS = st.integers(60, 150) | st.integers(1, 150)


@given(features(watched=False), SEEDS, ACTIONS)
@settings(max_examples=100)
def test_traffic_keeps_every_invariant(setup: Features, seed: int, actions: int) -> None:
    play(CheckedCache(setup.build()), seed, actions)


@given(features(watched=False), SEEDS)
@settings(max_examples=40)
def test_the_short_cut_of_decode_steps_changes_nothing(setup: Features, seed: int) -> None:
    """A manager that never takes it is in the same state after every call."""
    quick, thorough = CheckedCache(setup.build()), CheckedCache(setup.build())
    both = [Traffic(cache, Random(seed)) for cache in (quick, thorough)]
    for _ in range(80):
        for traffic in both:
            traffic.act(traffic.draw())
        for held in thorough.manager.coordinator.tables.values():
            held.no_work_until = -1
        assert snapshot(quick.manager) == snapshot(thorough.manager)


@pytest.mark.long
@given(features(watched=False), SEEDS, ACTIONS)
@settings(max_examples=6_000)
def test_a_lot_of_traffic_keeps_every_invariant(setup: Features, seed: int, actions: int) -> None:
    play(CheckedCache(setup.build()), seed, actions)
