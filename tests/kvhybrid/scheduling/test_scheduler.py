"""The scheduler: which request computes what in a step, which waits, and which is preempted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.scheduling.base import CapacityError, SchedulerOutput
from kvhybrid.scheduling.scheduler import Scheduler
from kvhybrid.specs import FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec

BLOCK = 4
FULL = FullAttentionSpec(block_size=BLOCK)
WINDOW = SlidingWindowSpec(block_size=BLOCK, window=6)
STATE = MambaSpec(block_size=BLOCK)
EOS = 7


def scheduler_of(
    specs: Sequence[KVCacheSpec] = (FULL,),
    *,
    num_blocks: int = 100,
    max_batched_tokens: int = 64,
    max_num_seqs: int = 8,
    max_model_len: int = 200,
    watermark: float = 0.0,
    enable_caching: bool = True,
    hash_block_size: int | None = None,
) -> Scheduler:
    groups = tuple(KVCacheGroup(f"g{i}", spec) for i, spec in enumerate(specs))
    cache = KVCacheManager(
        KVCacheConfig(groups, num_blocks, hash_block_size),
        max_model_len=max_model_len,
        max_in_flight_tokens=max_batched_tokens,
        enable_caching=enable_caching,
        watermark=watermark,
    )
    return Scheduler(
        cache, max_batched_tokens=max_batched_tokens, max_num_seqs=max_num_seqs, end_token_ids=frozenset({EOS})
    )


def submit(
    scheduler: Scheduler, name: str, num_tokens: int, max_new_tokens: int = 4, first: int = 1000
) -> Request:
    """A request whose prompt is ``first, first + 1, …``: equal firsts share a prefix."""
    tokens = range(first, first + num_tokens)
    request = Request(name, tokens, max_new_tokens=max_new_tokens, hasher=scheduler.cache.hasher)
    scheduler.add_request(request)
    return request


def work(output: SchedulerOutput) -> list[tuple[str, int, int]]:
    return [(item.request.request_id, item.start, item.num_tokens) for item in output.scheduled]


def settle(scheduler: Scheduler, output: SchedulerOutput, token: int = 1) -> tuple[str, ...]:
    """Pretend that the step ran and that every row sampled ``token``."""
    return scheduler.update_from_output(
        output, {item.request.request_id: token for item in output.scheduled if item.samples}
    )


def step(scheduler: Scheduler, token: int = 1) -> list[tuple[str, int, int]]:
    output = scheduler.schedule()
    settle(scheduler, output, token)
    return work(output)


def run(scheduler: Scheduler, limit: int = 2000) -> list[SchedulerOutput]:
    outputs = []
    while scheduler.has_unfinished:
        outputs.append(scheduler.schedule())
        settle(scheduler, outputs[-1])
        assert len(outputs) < limit, "the scheduler does not come to an end"
    return outputs


# ---- the budget


def test_a_long_prompt_is_computed_in_chunks_of_the_budget_and_then_decoded() -> None:
    scheduler = scheduler_of(max_batched_tokens=10)
    submit(scheduler, "a", 25, max_new_tokens=3)
    assert [step(scheduler) for _ in range(5)] == [
        [("a", 0, 10)],
        [("a", 10, 10)],
        [("a", 20, 5)],
        [("a", 25, 1)],
        [("a", 26, 1)],
    ]
    assert not scheduler.has_unfinished


def test_running_requests_come_first_and_waiting_ones_share_what_is_left() -> None:
    scheduler = scheduler_of(max_batched_tokens=12)
    submit(scheduler, "a", 6, first=1000)
    assert step(scheduler) == [("a", 0, 6)]
    submit(scheduler, "b", 8, first=2000)
    submit(scheduler, "c", 9, first=3000)
    assert step(scheduler) == [("a", 6, 1), ("b", 0, 8), ("c", 0, 3)]
    assert step(scheduler) == [("a", 7, 1), ("b", 8, 1), ("c", 3, 6)]


def test_no_more_requests_run_than_max_num_seqs() -> None:
    scheduler = scheduler_of(max_num_seqs=2)
    for name in "abc":
        submit(scheduler, name, 5, max_new_tokens=1, first=1000 * ord(name))
    assert step(scheduler) == [("a", 0, 5), ("b", 0, 5)]
    assert step(scheduler) == [("c", 0, 5)]


def test_only_the_step_that_reaches_the_last_token_samples() -> None:
    scheduler = scheduler_of(max_batched_tokens=6)
    submit(scheduler, "a", 10)
    assert [item.samples for item in scheduler.schedule().scheduled] == [False]


def test_token_counts_change_when_the_step_is_settled_and_not_before() -> None:
    scheduler = scheduler_of()
    request = submit(scheduler, "a", 10)
    output = scheduler.schedule()
    assert (request.num_computed_tokens, request.num_tokens) == (0, 10)
    assert output.num_scheduled_tokens == 10
    settle(scheduler, output, token=5)
    assert (request.num_computed_tokens, request.num_tokens) == (10, 11)
    assert request.output_token_ids == [5]


def test_a_step_with_a_state_group_ends_where_the_state_is_kept() -> None:
    scheduler = scheduler_of((FULL, STATE))
    submit(scheduler, "a", 18)
    assert [step(scheduler) for _ in range(2)] == [[("a", 0, 16)], [("a", 16, 2)]]


def test_without_caching_no_step_is_clipped_for_a_state() -> None:
    scheduler = scheduler_of((FULL, STATE), enable_caching=False)
    submit(scheduler, "a", 18)
    assert step(scheduler) == [("a", 0, 18)]


# ---- the end of a request


def test_a_request_ends_after_max_new_tokens_or_at_the_end_token() -> None:
    scheduler = scheduler_of()
    first = submit(scheduler, "a", 5, max_new_tokens=2)
    second = submit(scheduler, "b", 5, max_new_tokens=50, first=2000)
    settle(scheduler, scheduler.schedule(), token=1)
    assert settle(scheduler, scheduler.schedule(), token=EOS) == ("a", "b")
    assert first.output_token_ids == second.output_token_ids == [1, EOS]
    assert first.status is second.status is RequestStatus.FINISHED


def test_prompt_and_output_together_stay_within_max_model_len() -> None:
    scheduler = scheduler_of(max_model_len=12)
    request = submit(scheduler, "a", 9, max_new_tokens=50)
    run(scheduler)
    assert request.num_tokens == 12


def test_a_finished_request_holds_nothing() -> None:
    scheduler = scheduler_of()
    submit(scheduler, "a", 30)
    run(scheduler)
    assert scheduler.cache.usage == 0
    assert scheduler.cache.num_free_blocks == 99


@pytest.mark.parametrize(
    ("num_tokens", "max_new_tokens", "words"),
    [(12, 1, "a prompt of 12 tokens leaves no room"), (5, 0, "max_new_tokens must be at least 1")],
)
def test_a_request_that_can_give_no_token_is_refused_at_once(
    num_tokens: int, max_new_tokens: int, words: str
) -> None:
    scheduler = scheduler_of(max_model_len=12)
    with pytest.raises(ValueError, match=words):
        submit(scheduler, "a", num_tokens, max_new_tokens)
    assert not scheduler.has_unfinished


@pytest.mark.parametrize("limit", ["max_batched_tokens", "max_num_seqs"])
def test_limits_below_one_are_refused_by_name(limit: str) -> None:
    with pytest.raises(ValueError, match=f"{limit} must be at least 1, found 0"):
        Scheduler(scheduler_of().cache, **{limit: 0})


# ---- prefixes


def test_a_shared_prefix_is_not_computed_again() -> None:
    scheduler = scheduler_of()
    submit(scheduler, "a", 20)
    step(scheduler)
    submit(scheduler, "b", 30)
    assert step(scheduler) == [("a", 20, 1), ("b", 20, 10)]


def test_requests_admitted_in_one_step_share_attention_blocks_too() -> None:
    scheduler = scheduler_of()
    submit(scheduler, "a", 20)
    submit(scheduler, "b", 20)
    assert step(scheduler) == [("a", 0, 20), ("b", 16, 4)]


def test_a_state_of_this_step_is_hit_in_the_next() -> None:
    scheduler = scheduler_of((FULL, STATE))
    submit(scheduler, "a", 18)
    submit(scheduler, "b", 18)
    assert step(scheduler) == [("a", 0, 16)]
    assert step(scheduler) == [("a", 16, 2), ("b", 16, 2)]


def test_a_resend_finds_its_whole_prompt_but_the_last_token_s_block() -> None:
    scheduler = scheduler_of((FULL, WINDOW))
    submit(scheduler, "a", 20)
    run(scheduler)
    submit(scheduler, "b", 20)
    assert step(scheduler) == [("b", 16, 4)]


# ---- a short pool


def test_the_newest_running_request_is_preempted_and_resumes_first() -> None:
    scheduler = scheduler_of(num_blocks=7)
    a = submit(scheduler, "a", 11, max_new_tokens=6, first=1000)
    b = submit(scheduler, "b", 11, max_new_tokens=6, first=2000)
    submit(scheduler, "c", 3, max_new_tokens=6, first=3000)
    assert step(scheduler) == [("a", 0, 11), ("b", 0, 11)]
    assert step(scheduler) == [("a", 11, 1), ("b", 11, 1)]

    output = scheduler.schedule()

    assert work(output) == [("a", 12, 1)]
    assert output.preempted == (b,)
    assert b.status is RequestStatus.PREEMPTED
    assert (b.num_computed_tokens, b.num_preemptions, scheduler.num_preemptions) == (0, 1, 1)
    assert [request.request_id for request in scheduler.waiting] == ["b", "c"]
    settle(scheduler, output)
    run(scheduler)
    assert a.num_output_tokens == b.num_output_tokens == 6


def test_a_step_that_preempted_admits_no_request() -> None:
    scheduler = scheduler_of(num_blocks=7)
    for name in "ab":
        submit(scheduler, name, 11, max_new_tokens=6, first=1000 * ord(name))
    step(scheduler)
    step(scheduler)
    submit(scheduler, "small", 1, first=9000)
    output = scheduler.schedule()
    assert output.preempted
    assert [name for name, _, _ in work(output)] == ["a"]


def test_a_request_that_must_preempt_itself_ends_the_pass() -> None:
    scheduler = scheduler_of(num_blocks=7)
    submit(scheduler, "a", 10, max_new_tokens=20, first=1000)
    submit(scheduler, "b", 11, max_new_tokens=6, first=2000)
    step(scheduler)
    step(scheduler)
    output = scheduler.schedule()
    assert work(output) == [("a", 11, 1)]
    assert [request.request_id for request in output.preempted] == ["b"]


def test_a_preempted_request_resumes_from_what_the_cache_still_has() -> None:
    scheduler = scheduler_of(num_blocks=7)
    submit(scheduler, "a", 11, max_new_tokens=3, first=1000)
    submit(scheduler, "b", 11, max_new_tokens=6, first=2000)
    outputs = run(scheduler)
    (resumed,) = [item for output in outputs for item in output.scheduled if item.start and item.num_tokens > 1]
    assert resumed.request.request_id == "b"
    assert resumed.start % BLOCK == 0


def test_a_waiting_request_is_admitted_only_if_all_of_it_fits() -> None:
    scheduler = scheduler_of(num_blocks=9, max_batched_tokens=8)
    submit(scheduler, "a", 16, max_new_tokens=2, first=1000)
    submit(scheduler, "b", 20, max_new_tokens=2, first=2000)
    submit(scheduler, "c", 2, max_new_tokens=2, first=3000)
    admitted = [name for output in run(scheduler) for name, start, _ in work(output) if start == 0]
    assert admitted == ["a", "b", "c"]
    assert scheduler.num_preemptions == 0


def test_the_watermark_is_kept_free_only_beside_others() -> None:
    scheduler = scheduler_of(num_blocks=11, watermark=0.4)
    submit(scheduler, "a", 28, max_new_tokens=2, first=1000)
    submit(scheduler, "b", 4, max_new_tokens=2, first=2000)
    assert step(scheduler) == [("a", 0, 28)]


@pytest.mark.parametrize("specs", [(FULL,), (FULL, WINDOW), (FULL, STATE)])
def test_a_prompt_that_never_fits_ends_in_a_clear_error(specs: tuple[KVCacheSpec, ...]) -> None:
    scheduler = scheduler_of(specs, num_blocks=11)
    submit(scheduler, "giant", 60)
    after = submit(scheduler, "after", 8, first=2000)
    with pytest.raises(CapacityError, match=r"'giant' can never fit: its 60 tokens need \d+ blocks .* has 10"):
        run(scheduler)
    run(scheduler)
    assert after.num_output_tokens == 4
    assert scheduler.cache.usage == 0


def test_a_request_that_outgrows_the_pool_ends_in_a_clear_error() -> None:
    scheduler = scheduler_of(num_blocks=6)
    request = submit(scheduler, "a", 10, max_new_tokens=50)
    with pytest.raises(CapacityError, match="its 21 tokens need 6 blocks over 1 groups, and the whole pool has 5"):
        run(scheduler)
    assert request.num_output_tokens == 11
    assert not scheduler.has_unfinished
    assert scheduler.cache.num_free_blocks == 5


def test_a_hit_never_makes_a_request_too_large() -> None:
    """A hit inside a block costs a copy. In a pool that just holds the request, it must do without the hit."""
    scheduler = scheduler_of(
        (FullAttentionSpec(block_size=8), MambaSpec(block_size=8)), num_blocks=7, hash_block_size=2
    )
    submit(scheduler, "a", 30, max_new_tokens=1)
    assert [step(scheduler) for _ in range(3)] == [[("a", 0, 24)], [("a", 24, 4)], [("a", 28, 2)]]
    again = submit(scheduler, "b", 30, max_new_tokens=1)
    assert scheduler.cache.get_computed_blocks(again).num_tokens == 28
    assert step(scheduler) == [("b", 0, 24)]
    run(scheduler)
    assert again.num_output_tokens == 1


# ---- what an engine may do between steps


def test_an_aborted_request_gives_its_blocks_back() -> None:
    scheduler = scheduler_of(max_num_seqs=1)
    for name in "ab":
        submit(scheduler, name, 9, first=1000 * ord(name))
    step(scheduler)
    for name in ("a", "b", "unknown"):
        scheduler.abort(name)
    assert not scheduler.has_unfinished
    assert scheduler.cache.usage == 0


def test_a_discarded_step_leaves_no_key_and_loses_no_request() -> None:
    scheduler = scheduler_of((FULL, STATE))
    request = submit(scheduler, "a", 18)
    scheduler.discard_output(scheduler.schedule())
    assert (request.status, request.num_computed_tokens) == (RequestStatus.PREEMPTED, 0)
    assert scheduler.cache.usage == 0
    assert step(scheduler) == [("a", 0, 16)]


def test_the_scheduler_needs_no_torch() -> None:
    code = "import sys, kvhybrid.scheduling.scheduler; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- any load


@settings(max_examples=60, deadline=None)
@given(
    specs=st.sampled_from([(FULL,), (FULL, WINDOW), (FULL, STATE), (FULL, WINDOW, STATE)]),
    prompts=st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 12), st.sampled_from([1000, 2000])),
        min_size=1,
        max_size=8,
    ),
    num_blocks=st.integers(32, 60),
    budget=st.integers(1, 40),
    max_num_seqs=st.integers(1, 5),
)
def test_every_load_comes_to_an_end_within_its_limits(
    specs: tuple[KVCacheSpec, ...],
    prompts: list[tuple[int, int, int]],
    num_blocks: int,
    budget: int,
    max_num_seqs: int,
) -> None:
    scheduler = scheduler_of(specs, num_blocks=num_blocks, max_batched_tokens=budget, max_num_seqs=max_num_seqs)
    requests = [submit(scheduler, str(i), length, new, first) for i, (length, new, first) in enumerate(prompts)]
    outputs = run(scheduler)
    for output in outputs:
        assert output.num_scheduled_tokens == sum(item.num_tokens for item in output.scheduled) <= budget
        assert len(output.scheduled) <= max_num_seqs
        names = [item.request.request_id for item in output.scheduled]
        assert len(set(names)) == len(names)
        assert output.scheduled or output.preempted
    for request, (_, new, _) in zip(requests, prompts, strict=True):
        assert request.num_output_tokens == new
    assert scheduler.cache.usage == 0
