"""As test_exactness.py, for models with an encoder: the cache changes no logit after hits and preemptions."""

from __future__ import annotations

from math import isfinite
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from kvhybrid.engine.engine import Engine
from tests.models.recorded_engine import Record, RecordedEngine, StopAt
from tests.models.tiny_encoder_decoders import (
    decoder_prompt,
    encoder_tokens,
    features,
    full_logits,
    tiny_t5gemma,
    tiny_whisper,
)

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = 1e-4
"""Largest difference of a logit from transformers', in float32. Measured maxima: after a hit 6.1e-6, after a
preemption 1.6e-5 (Whisper; T5Gemma 2.5e-6 and 4.3e-6)."""
NEW_TOKENS = 4
BLOCK_SIZE = 4


class Task:
    """A tiny model and encoder inputs for it."""

    def __init__(self, name: str) -> None:
        self.oracle: PreTrainedModel = tiny_whisper() if name == "whisper" else tiny_t5gemma()
        self.inputs: list[Any] = [
            features(i) if name == "whisper" else encoder_tokens(5 + 3 * i, i) for i in range(6)
        ]

    def engine(self, chunking: StopAt | None = None, **options: Any) -> RecordedEngine:
        limits = {"block_size": BLOCK_SIZE, "num_blocks": 400, "max_model_len": 100, "max_encoder_tokens": 23}
        return RecordedEngine(Engine.from_hf(self.oracle, **{**limits, **options}), chunking)

    def largest_difference(self, record: Record) -> float:
        """Over every token that was computed, each time that it was."""
        largest = 0.0
        expected = {
            name: full_logits(self.oracle, self.inputs[int(name)], prompt + record.tokens[name])
            for name, prompt in record.prompts.items()
        }
        for (name, position), logits_V in record.logits:
            difference = float((logits_V - expected[name][position]).abs().max())
            assert isfinite(difference)
            largest = max(largest, difference)
        return largest


@pytest.fixture(scope="module", params=["t5gemma", "whisper"])
def task(request: pytest.FixtureRequest) -> Task:
    return Task(request.param)


def test_logits_after_a_prefix_hit_are_those_of_transformers(task: Task) -> None:
    engine = task.engine()
    prompts = [decoder_prompt(length, seed=length) for length in (41, 22, 60)]
    engine.run(prompts, NEW_TOKENS, task.inputs[:3])
    again = engine.run(prompts, NEW_TOKENS, task.inputs[:3])
    for index, prompt in enumerate(prompts):
        hit = (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE
        assert again.positions(str(index)) == list(range(hit, len(prompt) + NEW_TOKENS - 1))
    assert task.largest_difference(again) < TOLERANCE


def test_logits_after_a_preemption_are_those_of_transformers(task: Task) -> None:
    prompts = [decoder_prompt(length, seed=length) for length in range(7, 18, 2)]
    limits = {"max_batched_tokens": 32, "max_model_len": 40}
    least = sum(task.engine(**limits).engine.plan.blocks_per_request)
    preemptions, largest = 0, 0.0
    for spare in (
        1,
        12,
    ):  # how many run beside each other, and so who is preempted, depends on the family's blocks
        engine = task.engine(**limits, num_blocks=least + spare)
        record = engine.run(prompts, 18, task.inputs)
        preemptions += engine.engine.scheduler.num_preemptions
        largest = max(largest, task.largest_difference(record))
    assert preemptions > 0
    assert largest < TOLERANCE


def test_a_second_run_computes_only_what_the_cache_cannot_give_and_changes_no_bit(task: Task) -> None:
    hit = 3 * BLOCK_SIZE
    prompts = [decoder_prompt(hit + 3, seed=seed) for seed in range(4)]
    cached = task.engine(StopAt(hit))
    first, second = (cached.run(prompts, NEW_TOKENS, task.inputs[:4]) for _ in range(2))
    uncached = task.engine(StopAt(hit), enable_prefix_caching=False).run(prompts, NEW_TOKENS, task.inputs[:4])
    decodes = [len(prompts)] * (NEW_TOKENS - 1)
    assert [step.num_scheduled_tokens for step in second.steps] == [3 * len(prompts), *decodes]
    wanted = dict(uncached.logits)
    for record in (first, second):
        assert record.tokens == uncached.tokens
        assert all(torch.equal(logits_V, wanted[place]) for place, logits_V in record.logits)
