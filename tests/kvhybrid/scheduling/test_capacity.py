"""Plan and scheduler agree on how many requests of the maximum length run at once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request
from kvhybrid.planning import CachePlan, plan_cache
from kvhybrid.planning.capacity import requests_at_once
from kvhybrid.scheduling.scheduler import Scheduler
from kvhybrid.specs import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

LENGTH, NEW_TOKENS = 208, 3
FULL = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8)
WINDOW = SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=8, window=40)
CHUNK = ChunkedLocalAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, chunk=48)
STATE = MambaSpec(block_size=16, shapes=((8, 16),), dtypes=("float32",))

TOKENS: dict[str, list[KVCacheSpec]] = {
    "full": [FULL] * 4,
    "latent": [MLAAttentionSpec(block_size=16, head_size=24)] * 3,
    "window": [WINDOW] * 3,
    "window and full": [WINDOW] * 5 + [FULL],
    "chunk and full": [CHUNK] * 3 + [FULL],
}
STATES: dict[str, list[KVCacheSpec]] = {
    "state and full": [STATE] * 7 + [FULL],
    "window, chunk, state and full": [WINDOW, CHUNK, STATE, FULL],
}


def planned(layers: Sequence[KVCacheSpec], num_blocks: int, budget: int, length: int = LENGTH) -> CachePlan:
    return plan_cache(
        {f"layer{i}": spec for i, spec in enumerate(layers)},
        num_blocks=num_blocks,
        max_model_len=length,
        max_in_flight_tokens=budget,
    )


def admitted(plan: CachePlan, requests: int, prompt: int) -> tuple[int, int]:
    """How many of ``requests`` requests without shared prefixes run in the first step; all preemptions."""
    cache = KVCacheManager(
        plan.config, max_model_len=plan.max_model_len, max_in_flight_tokens=plan.max_in_flight_tokens
    )
    scheduler = Scheduler(cache, max_batched_tokens=plan.max_in_flight_tokens, max_num_seqs=100)
    for i in range(requests):
        tokens = range(1000 * i, 1000 * i + prompt)
        new = plan.max_model_len - prompt
        scheduler.add_request(Request(f"r{i}", tokens, max_new_tokens=new, hasher=cache.hasher))
    together = []
    while scheduler.has_unfinished:
        output = scheduler.schedule()
        together.append(len(scheduler.running))
        sampled = {item.request.request_id: 1 for item in output.scheduled if item.samples}
        scheduler.update_from_output(output, sampled)
    return together[0], scheduler.num_preemptions


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("model", TOKENS)
def test_the_planned_number_of_longest_requests_runs_and_the_next_waits(model: str, number: int) -> None:
    """All prompts fit in one step, in which each request holds the most blocks that it ever will."""
    budget = (number + 1) * LENGTH
    needed = sum(planned(TOKENS[model], 10_000, budget).blocks_per_request)
    for spare, expected in ((0, number), (needed - 1, number), (needed, number + 1)):
        plan = planned(TOKENS[model], number * needed + spare + 1, budget)
        assert requests_at_once(plan, LENGTH) == expected
        assert admitted(plan, number + 1, LENGTH - NEW_TOKENS) == (expected, 0)


@pytest.mark.parametrize("model", STATES)
def test_a_state_is_planned_with_a_second_block_for_the_step_that_enters_the_next_one(model: str) -> None:
    """So the planned number runs without preemption, whenever its requests enter the next block."""
    for prompt in (150, 175, 176, 192, 205):
        budget = 3 * LENGTH
        needed = sum(planned(STATES[model], 10_000, budget).blocks_per_request)
        plan = planned(STATES[model], 3 * needed + 1, budget)
        assert requests_at_once(plan, LENGTH) == 3
        assert admitted(plan, 3, prompt) == (3, 0)
