"""Admission: the most blocks that one request holds at once."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvhybrid.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    PrivateStateSpec,
    SinkWindowSpec,
    SlidingWindowSpec,
)

LONG = 131_072

SIZES = st.integers(1, 8)
WIDTHS = st.integers(1, 24)
SPECS = st.one_of(
    st.builds(FullAttentionSpec, block_size=SIZES),
    st.builds(SlidingWindowSpec, block_size=SIZES, window=WIDTHS),
    st.builds(ChunkedLocalAttentionSpec, block_size=SIZES, chunk=WIDTHS),
    st.builds(SinkWindowSpec, block_size=SIZES, sinks=WIDTHS, window=WIDTHS),
    st.builds(CrossAttentionSpec, block_size=SIZES),
    st.builds(MambaSpec, block_size=SIZES),
)


@dataclass(frozen=True, kw_only=True)
class LastStatesSpec(MambaSpec):
    """A state that needs the two before it as well, and that has no formula of its own."""

    def first(self, p: int) -> int:
        return max(0, p - 3)

    def admission_blocks(
        self, max_in_flight_tokens: int, max_model_len: int, block_size: int | None = None
    ) -> int:
        return KVCacheSpec.admission_blocks(self, max_in_flight_tokens, max_model_len, block_size)


def most_over_every_step(spec: KVCacheSpec, in_flight: int, length: int, size: int) -> int:
    return max(
        spec.step_blocks(n, m, size) for n in range(length) for m in range(n + 1, min(n + in_flight, length) + 1)
    )


@settings(max_examples=400, deadline=None)
@given(SPECS, st.integers(1, 24), st.integers(1, 60), st.none() | SIZES)
@example(MambaSpec(block_size=3), 18, 13, None)
@example(ChunkedLocalAttentionSpec(block_size=4, chunk=6), 3, 40, None)
def test_a_formula_and_trying_every_step_agree(
    spec: KVCacheSpec, in_flight: int, length: int, size: int | None
) -> None:
    generic = KVCacheSpec.admission_blocks(spec, in_flight, length, size)
    assert spec.admission_blocks(in_flight, length, size) == generic


@settings(max_examples=60, deadline=None)
@given(
    SPECS | st.builds(LastStatesSpec, block_size=SIZES),
    st.integers(1, 12),
    st.integers(1, 30),
)
def test_no_step_of_any_length_touches_more_and_some_step_touches_as_many(
    spec: KVCacheSpec, in_flight: int, length: int
) -> None:
    expected = most_over_every_step(spec, in_flight, length, spec.block_size)
    assert spec.admission_blocks(in_flight, length) == expected


@given(SPECS, st.integers(1, 24), st.integers(1, 40))
def test_a_longer_request_never_takes_fewer_blocks(spec: KVCacheSpec, in_flight: int, length: int) -> None:
    shorter, longer = (spec.admission_blocks(in_flight, size) for size in (length, length + 1))
    assert shorter <= longer


@pytest.mark.parametrize(("window", "in_flight", "expected"), [(1024, 8192, 577), (128, 16_384, 1033)])
def test_window_figures(window: int, in_flight: int, expected: int) -> None:
    assert SlidingWindowSpec(block_size=16, window=window).admission_blocks(in_flight, LONG) == expected


@pytest.mark.parametrize(("in_flight", "expected"), [(8192, 1024), (16_384, 1536)])
def test_chunk_figures(in_flight: int, expected: int) -> None:
    assert ChunkedLocalAttentionSpec(block_size=16, chunk=8192).admission_blocks(in_flight, LONG) == expected


@pytest.mark.parametrize(
    "spec",
    [
        SinkWindowSpec(block_size=16, sinks=4, window=1021),
        ChunkedLocalAttentionSpec(block_size=16, chunk=8190),
        SlidingWindowSpec(block_size=16, window=4096),
    ],
)
def test_no_spec_looks_at_every_step_of_a_million_tokens(
    spec: KVCacheSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    whole = KVCacheSpec.step_blocks
    monkeypatch.setattr(KVCacheSpec, "step_blocks", lambda *step: tried.append(step) or whole(*step))
    assert spec.admission_blocks(8192, 1_000_000) < 1_000_000 // 16
    assert len(tried) <= 17, "a block's worth of steps, and the last"


def test_full_attention_holds_the_whole_request_whatever_is_in_flight() -> None:
    spec = FullAttentionSpec(block_size=16)
    assert spec.admission_blocks(1, LONG) == spec.admission_blocks(LONG, LONG) == 8192
    assert spec.admission_blocks(1, 17) == 2


def test_cross_attention_holds_every_token_of_the_encoder() -> None:
    assert CrossAttentionSpec(block_size=16).admission_blocks(1, 1500) == 94


def test_a_state_needs_the_block_it_starts_from_and_the_one_it_ends_on() -> None:
    spec = MambaSpec(block_size=4)
    assert spec.admission_blocks(8192, LONG) == 2
    assert spec.admission_blocks(8192, 5) == 2, "a prompt of four tokens and one decoded token"
    assert spec.admission_blocks(8192, 4) == 1


def test_a_private_state_whose_block_covers_the_request_is_one_block() -> None:
    assert PrivateStateSpec(block_size=LONG).admission_blocks(8192, LONG) == 1


@given(SIZES, st.integers(1, 24), st.integers(1, 40))
def test_a_private_state_with_shorter_blocks_is_not_capped(size: int, in_flight: int, length: int) -> None:
    spec = PrivateStateSpec(block_size=size)
    assert spec.admission_blocks(in_flight, length) == -(-length // size)
    assert spec.admission_blocks(in_flight, length) >= KVCacheSpec.admission_blocks(spec, in_flight, length)


def test_ranks_that_share_a_block_need_fewer() -> None:
    assert FullAttentionSpec(block_size=16).admission_blocks(64, 1024, block_size=64) == 16
