"""The cache changes no logit: of every family, through the real engine, after hits and after preemptions."""

from __future__ import annotations

from math import isfinite, lcm
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from kvhybrid.engine.engine import Engine
from tests.models.recorded_engine import Record, RecordedEngine, StopAt
from tests.models.tiny_models import CONFIGS, full_logits, random_prompt, tiny

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = 1e-4
"""Largest difference of a logit from transformers', in float32. Measured maxima over all families: after a
hit 1.6e-5, after a preemption 1.4e-5 (Gemma 3n; the others 7.7e-6 and 8.8e-6)."""
NEW_TOKENS = 4
BLOCK_SIZE = 4


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def oracle(request: pytest.FixtureRequest) -> PreTrainedModel:
    return tiny(request.param)


def recorded(oracle: PreTrainedModel, chunking: StopAt | None = None, **options: Any) -> RecordedEngine:
    limits = {"block_size": BLOCK_SIZE, "num_blocks": 600, "max_model_len": 128}
    return RecordedEngine(Engine.from_hf(oracle, **{**limits, **options}), chunking)


def hit_unit(engine: Engine) -> int:
    """Where a hit may end: where every group ends a block."""
    return lcm(*engine.plan.config.block_sizes)


def largest_difference(record: Record, oracle: PreTrainedModel) -> float:
    """Over every token that was computed, each time that it was."""
    largest = 0.0
    expected = {}
    for name, prompt in record.prompts.items():
        expected[name] = full_logits(oracle, prompt + record.tokens[name])
        assert expected[name].std() > 0.3, "an oracle with flat logits tests nothing"
    for (name, position), logits_V in record.logits:
        difference = float((logits_V - expected[name][position]).abs().max())
        assert isfinite(difference)
        largest = max(largest, difference)
    return largest


def assert_bitwise_equal(found: Record, expected: Record) -> None:
    """Every logit that ``found`` computed."""
    assert found.tokens == expected.tokens
    wanted = dict(expected.logits)
    for place, logits_V in found.logits:
        assert torch.equal(logits_V, wanted[place]), place


# ---- within the tolerance of transformers


def test_logits_after_a_prefix_hit_are_those_of_transformers(oracle: PreTrainedModel) -> None:
    """A second run of three prompts, and one that leaves the longest of them halfway."""
    engine = recorded(oracle)
    prompts = [random_prompt(length, seed=length) for length in (61, 33, 90)]
    engine.run(prompts, NEW_TOKENS)
    unit = hit_unit(engine.engine)
    again = engine.run([*prompts, prompts[2][: 3 * unit + 1] + random_prompt(9, seed=5)], NEW_TOKENS)
    for index, prompt in enumerate(prompts):
        hit = (len(prompt) - 1) // unit * unit
        assert again.positions(str(index)) == list(range(hit, len(prompt) + NEW_TOKENS - 1))
    assert largest_difference(again, oracle) < TOLERANCE


def test_logits_after_a_preemption_are_those_of_transformers(oracle: PreTrainedModel) -> None:
    """The pool holds one request of the longest length; several short ones grow until they do not fit. With a
    cache a preempted request comes back to what it finds there, without one to nothing."""
    prompts = [random_prompt(length, seed=length) for length in range(7, 22, 2)]
    limits = {"max_batched_tokens": 32, "max_model_len": 40}
    num_blocks = sum(recorded(oracle, **limits).engine.plan.blocks_per_request) + 1
    records, recomputed = [], []
    for caching in (True, False):
        engine = recorded(oracle, **limits, num_blocks=num_blocks, enable_prefix_caching=caching)
        record = engine.run(prompts, num_tokens=18)
        records.append(record)
        recomputed.append(
            (len(record.logits) - len(dict(record.logits))) / engine.engine.scheduler.num_preemptions
        )
    cached, uncached = records
    assert recomputed[1] > 0, "nothing was recomputed"
    assert recomputed[0] <= recomputed[1], "tokens recomputed after a preemption"
    assert cached.tokens == uncached.tokens
    cached.logits += uncached.logits
    assert largest_difference(cached, oracle) < TOLERANCE


# ---- bitwise those of a run without a cache


def test_a_second_run_computes_only_what_the_cache_cannot_give_and_changes_no_bit(
    oracle: PreTrainedModel,
) -> None:
    """Four prompts in one batch. Both runs cut them where hits end, so that every step has the same rows."""
    unit = hit_unit(recorded(oracle).engine)
    hit = 3 * unit
    prompts = [random_prompt(hit + min(3, unit), seed=seed) for seed in range(4)]
    cached = recorded(oracle, StopAt(hit))
    first, second = cached.run(prompts, NEW_TOKENS), cached.run(prompts, NEW_TOKENS)
    uncached = recorded(oracle, StopAt(hit), enable_prefix_caching=False).run(prompts, NEW_TOKENS)

    tails = sum(len(prompt) - hit for prompt in prompts)
    decodes = [len(prompts)] * (NEW_TOKENS - 1)  # a request's last token is never computed
    assert [step.num_scheduled_tokens for step in second.steps] == [tails, *decodes]
    assert [step.num_scheduled_tokens for step in uncached.steps] == [hit * len(prompts), tails, *decodes]
    assert_bitwise_equal(first, uncached)
    assert_bitwise_equal(second, uncached)


def test_requests_that_share_a_prefix_one_after_another_change_no_bit(oracle: PreTrainedModel) -> None:
    """No hand is laid on the scheduler here: the token budget alone cuts every prompt into three chunks."""
    unit = hit_unit(recorded(oracle).engine)
    limits = {"max_num_seqs": 1, "max_batched_tokens": unit}
    shared = random_prompt(2 * unit, seed=1)
    prompts = [shared + random_prompt(min(3, unit), seed=seed) for seed in (2, 3, 4)]
    cached = recorded(oracle, **limits).run(prompts, NEW_TOKENS)
    uncached = recorded(oracle, enable_prefix_caching=False, **limits).run(prompts, NEW_TOKENS)

    saved = 2 * len(shared)  # the second and the third request find the prefix of the first
    assert cached.num_scheduled_tokens == uncached.num_scheduled_tokens - saved
    assert [cached.positions(name)[0] for name in cached.prompts] == [0, len(shared), len(shared)]
    assert_bitwise_equal(cached, uncached)
