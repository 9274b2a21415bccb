"""Prefill chunking: where a step must end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request
from kvhybrid.scheduling.chunking import PrefillChunking, resume_position
from kvhybrid.specs import (
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)

FULL_8 = FullAttentionSpec(block_size=8)
STATE_8 = MambaSpec(block_size=8)


def chunking_of(*specs: KVCacheSpec, hash_block_size: int | None = None, draft: bool = False) -> PrefillChunking:
    groups = tuple(KVCacheGroup(f"g{i}", spec, draft=draft) for i, spec in enumerate(specs))
    config = KVCacheConfig(groups, 100, hash_block_size)
    return PrefillChunking(KVCacheManager(config, max_model_len=200).coordinator)


def chunks(
    chunking: PrefillChunking, num_tokens: int, budget: int, start: int = 0, junction: int = 0
) -> list[int]:
    """The positions at which the steps of one prefill end, each with the same budget."""
    request = Request("r", range(num_tokens))
    request.shared_prefix_boundary = junction
    ends = []
    while start < num_tokens:
        start += chunking.clip(request, start, min(budget, num_tokens - start))
        ends.append(start)
    return ends


@pytest.mark.parametrize(
    "specs",
    [
        (FULL_8,),
        (FULL_8, SlidingWindowSpec(block_size=8, window=9)),
    ],
)
def test_without_a_cacheable_state_a_step_ends_where_the_budget_does(specs: tuple[KVCacheSpec, ...]) -> None:
    assert chunks(chunking_of(*specs), 30, 13) == [13, 26, 30]


def test_the_last_boundary_from_which_the_prompt_can_be_resumed_ends_a_step() -> None:
    chunking = chunking_of(FULL_8, STATE_8)
    assert chunks(chunking, 30, 100) == [24, 30]
    assert chunks(chunking, 33, 100) == [32, 33]
    assert chunks(chunking, 32, 100) == [24, 32]
    assert chunks(chunking, 8, 100) == [8]


def test_a_step_that_the_budget_cuts_ends_on_a_block_boundary() -> None:
    assert chunks(chunking_of(FULL_8, STATE_8), 60, 21) == [16, 32, 48, 56, 60]


def test_a_budget_below_one_block_still_ends_steps_on_boundaries() -> None:
    assert chunks(chunking_of(FULL_8, STATE_8), 20, 5) == [5, 8, 13, 16, 20]


def test_a_step_that_starts_inside_a_block_ends_with_it() -> None:
    assert chunks(chunking_of(FULL_8, STATE_8), 40, 100, start=12) == [16, 32, 40]


def test_the_junction_gets_a_state() -> None:
    chunking = chunking_of(FULL_8, STATE_8)
    assert chunks(chunking, 60, 100, junction=24) == [24, 56, 60]
    assert chunks(chunking, 60, 100, junction=29) == [24, 56, 60]
    assert chunks(chunking, 60, 100, junction=7) == [56, 60]


def test_where_hits_may_end_inside_a_block_the_prompt_gets_a_checkpoint_there() -> None:
    chunking = chunking_of(FULL_8, STATE_8, hash_block_size=2)
    assert chunks(chunking, 30, 100) == [24, 28, 30]
    assert chunks(chunking, 25, 100) == [24, 25]
    assert chunks(chunking, 6, 100) == [4, 6]


def test_where_hits_end_on_common_boundaries_only_those_are_kept() -> None:
    window = SlidingWindowSpec(block_size=12, window=20)
    assert chunks(chunking_of(FULL_8, STATE_8, window), 60, 100) == [48, 60]


def test_a_draft_model_resumes_one_unit_earlier() -> None:
    assert chunks(chunking_of(FULL_8, STATE_8, draft=True), 30, 100) == [16, 30]
    assert [resume_position(n, 8, draft=True) for n in (7, 8, 15, 16, 17, 24)] == [0, 0, 0, 8, 8, 16]
    assert [resume_position(n, 8, draft=False) for n in (7, 8, 9, 16, 17)] == [0, 0, 8, 8, 16]


def test_decode_steps_are_left_alone() -> None:
    request = Request("r", range(20))
    request.append_output_token_ids(range(7))
    assert chunking_of(FULL_8, STATE_8).clip(request, 26, 1) == 1


def test_a_preempted_request_keeps_the_last_boundary_of_its_output_too() -> None:
    request = Request("r", range(20))
    request.append_output_token_ids(range(7))
    chunking = chunking_of(FULL_8, STATE_8)
    assert chunking.clip(request, 0, 27) == 24
    assert chunking.clip(request, 24, 3) == 3


@given(
    num_tokens=st.integers(1, 200),
    budget=st.integers(1, 70),
    start=st.integers(0, 199),
    junction=st.integers(0, 199),
    unit=st.sampled_from([None, 2, 4, 8]),
)
def test_every_step_moves_on_and_the_last_boundary_is_never_missed(
    num_tokens: int, budget: int, start: int, junction: int, unit: int | None
) -> None:
    start = min(start, num_tokens - 1)
    ends = chunks(chunking_of(FULL_8, STATE_8, hash_block_size=unit), num_tokens, budget, start, junction)
    lengths = [end - begin for begin, end in zip([start, *ends], ends, strict=False)]
    assert all(0 < length <= budget for length in lengths)
    assert ends[-1] == num_tokens
    last = resume_position(num_tokens, 8, draft=False)
    assert last <= start or last in ends
