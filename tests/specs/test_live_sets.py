"""Live sets: which earlier positions the token at a position still reads."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhybrid.specs import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    PrivateStateSpec,
    SlidingWindowSpec,
)


@dataclass(frozen=True, kw_only=True)
class SinkWindowSpec(AttentionSpec):
    """A window and the first ``sinks`` tokens: a live set of two ranges, as a third party would write it."""

    window: int = 1
    sinks: int = 1

    def live(self, p: int) -> tuple[range, ...]:
        sinks = min(self.sinks, p)
        return range(sinks), range(max(sinks, p - self.window + 1), p)


SMALL = st.integers(1, 12)
SPECS = st.one_of(
    st.builds(FullAttentionSpec, block_size=SMALL),
    st.builds(SlidingWindowSpec, block_size=SMALL, window=SMALL),
    st.builds(ChunkedLocalAttentionSpec, block_size=SMALL, chunk=SMALL),
    st.builds(CrossAttentionSpec, block_size=SMALL),
    st.builds(MambaSpec, block_size=SMALL),
    st.builds(PrivateStateSpec, block_size=SMALL),
    st.builds(SinkWindowSpec, block_size=SMALL, window=SMALL, sinks=SMALL),
)
POSITIONS = st.integers(0, 60)


def positions(spec: KVCacheSpec, p: int) -> list[int]:
    return [j for part in spec.live(p) for j in part]


def blocks(spec: KVCacheSpec, p: int, size: int | None = None) -> list[int]:
    return [j for part in spec.live_blocks(p, size) for j in part]


@pytest.mark.parametrize("p", [0, 1, 7, 100])
def test_full_attention_reads_everything(p: int) -> None:
    assert positions(FullAttentionSpec(block_size=4), p) == list(range(p))


@pytest.mark.parametrize(("p", "expected"), [(0, []), (1, [0]), (3, [0, 1, 2]), (4, [1, 2, 3]), (9, [6, 7, 8])])
def test_a_window_of_four_reads_the_three_tokens_before(p: int, expected: list[int]) -> None:
    assert positions(SlidingWindowSpec(block_size=2, window=4), p) == expected


def test_a_window_of_one_reads_nothing() -> None:
    assert all(not positions(SlidingWindowSpec(block_size=2, window=1), p) for p in range(20))


@pytest.mark.parametrize(("p", "expected"), [(0, []), (3, [0, 1, 2]), (4, []), (6, [4, 5]), (11, [8, 9, 10])])
def test_a_chunk_of_four_is_read_from_its_start(p: int, expected: list[int]) -> None:
    assert positions(ChunkedLocalAttentionSpec(block_size=2, chunk=4), p) == expected


@pytest.mark.parametrize("spec", [MambaSpec(block_size=4), PrivateStateSpec(block_size=4)])
def test_a_state_is_read_where_the_last_token_left_it(spec: KVCacheSpec) -> None:
    assert positions(spec, 0) == []
    assert positions(spec, 1) == [0]
    assert positions(spec, 9) == [8]


def test_cross_attention_reads_all_tokens_of_the_encoder() -> None:
    spec = CrossAttentionSpec(block_size=4)
    assert spec.source == "encoder"
    assert positions(spec, 5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("p", "expected"), [(0, []), (2, [0, 1]), (4, [0, 1, 2, 3]), (5, [0, 1, 3, 4]), (9, [0, 1, 7, 8])]
)
def test_sinks_stay_beside_the_window(p: int, expected: list[int]) -> None:
    assert positions(SinkWindowSpec(block_size=2, window=3, sinks=2), p) == expected


@given(SPECS, POSITIONS)
def test_first_law_a_live_set_lies_below_its_position_in_ascending_disjoint_ranges(
    spec: KVCacheSpec, p: int
) -> None:
    found = positions(spec, p)
    assert found == sorted(set(found))
    assert all(0 <= j < p for j in found)


@given(SPECS, POSITIONS, POSITIONS)
def test_second_law_what_is_dead_stays_dead(spec: KVCacheSpec, q: int, p: int) -> None:
    q, p = min(q, p), max(q, p)
    assert {j for j in positions(spec, p) if j < q} <= set(positions(spec, q))


@given(SPECS, POSITIONS, st.none() | SMALL)
def test_live_blocks_are_those_that_the_live_set_touches(spec: KVCacheSpec, p: int, size: int | None) -> None:
    touched = {j // (size or spec.block_size) for j in positions(spec, p)}
    assert blocks(spec, p, size) == sorted(touched)


@given(SPECS, POSITIONS, st.integers(1, 20))
def test_a_step_touches_what_it_reads_and_what_it_writes(spec: KVCacheSpec, n: int, new: int) -> None:
    m = n + new
    written = set(blocks(spec, m)) if spec.state else {j // spec.block_size for j in range(n, m)}
    started = {n // spec.block_size} if not spec.state and n % spec.block_size else set()
    assert spec.step_blocks(n, m) == len(set(blocks(spec, n)) | written | started)


def test_a_state_step_touches_two_blocks_however_long_it_is() -> None:
    spec = MambaSpec(block_size=4)
    assert spec.step_blocks(0, 40) == 1
    assert spec.step_blocks(4, 40) == 2
    assert spec.step_blocks(5, 8) == 1


def test_kinds_differ_in_what_they_declare() -> None:
    declared = {
        spec.kind: (spec.state, spec.cacheable, spec.source, spec.retained, spec.prefix, spec.sharded)
        for spec in (
            FullAttentionSpec,
            SlidingWindowSpec,
            ChunkedLocalAttentionSpec,
            CrossAttentionSpec,
            MambaSpec,
            PrivateStateSpec,
        )
    }
    assert declared == {
        "full": (False, True, "decoder", False, True, True),
        "sliding_window": (False, True, "decoder", True, False, True),
        "chunked_local": (False, True, "decoder", False, False, True),
        "cross": (False, False, "encoder", False, False, True),
        "mamba": (True, True, "decoder", True, False, False),
        "private_state": (False, False, "decoder", False, False, False),
    }
