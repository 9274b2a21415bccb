"""Whatever is called, in whatever order: no block is lost, counted twice, or read with wrong content."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import event, given, note, settings
from hypothesis import strategies as st

from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    PrivateStateSpec,
    SlidingWindowSpec,
)
from tests.kvhybrid.cache.invariants import assert_invariants, snapshot
from tests.kvhybrid.cache.traffic import Traffic

MAX_LEN = 48
NUM_CALLS = st.integers(60, 150) | st.integers(1, 150)
WEIGHTS = {
    "submit": 4,
    "admit": 5,
    "run": 6,
    "end_step": 5,
    "finish": 2,
    "preempt": 1,
    "load": 1,
    "evict": 1,
    "reset": 1,
}


def spec_of(kind: str, size: int, extent: int) -> KVCacheSpec:
    """``extent`` is the window, or the chunk."""
    if kind == "window":
        return SlidingWindowSpec(block_size=size, window=extent)
    if kind == "chunked":
        return ChunkedLocalAttentionSpec(block_size=size, chunk=extent)
    plain = {"full": FullAttentionSpec, "cross": CrossAttentionSpec, "mamba": MambaSpec}
    return plain[kind](block_size=size)


@st.composite
def cached_groups(draw: st.DrawFn) -> tuple[list[KVCacheSpec], int | None]:
    """One to four groups and the tokens per key: equal blocks, multiples, or hits that end inside a block."""
    unit = draw(st.integers(1, 4))
    layout = draw(st.sampled_from(["equal", "mixed", "sub_block"]))
    kinds = draw(
        st.lists(st.sampled_from(["full", "window", "chunked", "mamba", "cross"]), min_size=1, max_size=4)
    )
    if all(kind == "cross" for kind in kinds):
        kinds[0] = "full"
    specs = []
    for kind in kinds:
        factor = 1
        if layout == "mixed" and len(kinds) > 1:
            factor = draw(st.integers(1, 2))
        if layout == "sub_block" and len(kinds) > 1 and kind in ("full", "mamba"):
            factor = 2 if kind == "mamba" else draw(st.integers(1, 2))
        specs.append(spec_of(kind, unit * factor, draw(st.integers(1, 10))))
    alone = len(kinds) == 1
    return specs, None if alone else unit


@dataclass(frozen=True)
class Setup:
    """A cache manager's arguments, so that a failing example shows them."""

    config: KVCacheConfig
    enable_caching: bool
    max_in_flight_tokens: int | None
    watermark: float
    retention_interval: int | None

    def build(self) -> KVCacheManager:
        return KVCacheManager(
            self.config,
            max_model_len=MAX_LEN,
            max_in_flight_tokens=self.max_in_flight_tokens,
            enable_caching=self.enable_caching,
            watermark=self.watermark,
            retention_interval=self.retention_interval,
        )


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    caching = draw(st.sampled_from([True, True, True, False]))
    unit: int | None = None
    if caching:
        specs, unit = draw(cached_groups())
    else:
        kinds = st.sampled_from(["full", "window", "chunked", "cross", "private"])
        specs = [
            PrivateStateSpec(block_size=MAX_LEN)
            if kind == "private"
            else spec_of(kind, draw(st.integers(1, 4)), draw(st.integers(1, 10)))
            for kind in draw(st.lists(kinds, min_size=1, max_size=4))
        ]
    drafts = caching and draw(st.sampled_from([False, False, True]))
    groups = tuple(
        KVCacheGroup(
            f"g{g}", spec, draft=drafts and spec.kind in ("full", "sliding_window") and draw(st.booleans())
        )
        for g, spec in enumerate(specs)
    )
    config = KVCacheConfig(
        groups, draw(st.sampled_from([8, 16, 24, 40, 60, 90]) | st.integers(4, 90)), hash_block_size=unit
    )
    interval = draw(st.sampled_from([None, None, 0, config.scheduler_block_size, 2 * config.scheduler_block_size]))
    return Setup(
        config,
        enable_caching=caching,
        max_in_flight_tokens=draw(st.sampled_from([None, 16])),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1])),
        retention_interval=interval if caching else None,
    )


def calls(seed: int, count: int) -> Iterator[tuple[str, int, int]]:
    """The first ``count`` of the endless list of calls that ``seed`` stands for."""
    rng, kinds, weights = random.Random(seed), list(WEIGHTS), list(WEIGHTS.values())
    for _ in range(count):
        kind, a, b = rng.choices(kinds, weights)[0], rng.randrange(1000), rng.randrange(1000)
        note(f"{kind} {a} {b}")
        yield kind, a, b


def play(manager: KVCacheManager, seed: int, count: int) -> Traffic:
    traffic = Traffic(manager)
    for kind, a, b in calls(seed, count):
        traffic.call(kind, a, b)
    for seen in sorted(traffic.seen):
        event(seen)
    return traffic


def wind_up(traffic: Traffic) -> None:
    """When all requests have gone, all blocks are free, and a reset leaves no key."""
    manager = traffic.manager
    traffic.call("end_step", 0, 0)
    for _ in range(len(traffic.running) + len(traffic.waiting) + len(traffic.loading)):
        traffic.call("finish", 0, 0)
    assert manager.usage == 0.0
    assert manager.num_free_blocks == manager.config.num_blocks - 1
    assert manager.reset_prefix_cache()
    assert_invariants(manager)


@given(setups(), st.integers(0, 2**32 - 1), NUM_CALLS)
@settings(max_examples=100)
def test_traffic_keeps_every_invariant(setup: Setup, seed: int, num_calls: int) -> None:
    wind_up(play(setup.build(), seed, num_calls))


@given(setups(), st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_the_short_cut_of_decode_steps_changes_nothing(setup: Setup, seed: int) -> None:
    """A manager that never takes it is in the same state after every call."""
    quick, thorough = setup.build(), setup.build()
    taken = Traffic(quick), Traffic(thorough)
    for kind, a, b in calls(seed, 80):
        for traffic in taken:
            traffic.call(kind, a, b)
        for held in thorough.coordinator.tables.values():
            held.no_work_until = -1
        assert snapshot(quick) == snapshot(thorough)


@pytest.mark.long
@given(setups(), st.integers(0, 2**32 - 1), NUM_CALLS)
@settings(max_examples=6_000)
def test_a_lot_of_traffic_keeps_every_invariant(setup: Setup, seed: int, num_calls: int) -> None:
    wind_up(play(setup.build(), seed, num_calls))
