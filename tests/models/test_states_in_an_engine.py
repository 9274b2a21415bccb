"""The families that keep a recurrent state, in an engine: planning makes one block of tokens as large as a state,
so that prompts are resumed, and run out of room, at long strides."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedModel

from kvhybrid.engine.engine import Engine
from tests.models.tiny_models import generated, random_prompt, tiny

LIMITS: dict[str, Any] = {"block_size": 4, "max_batched_tokens": 64, "max_model_len": 160}


@pytest.fixture(scope="module", params=["bamba", "granitemoehybrid", "qwen3_next"])
def oracle(request: pytest.FixtureRequest) -> PreTrainedModel:
    return tiny(request.param)


def largest_block(engine: Engine) -> int:
    """Tokens."""
    return max(group.spec.block_size for group in engine.plan.config.groups)


def test_tokens_are_those_of_generate_and_again_after_prefix_hits(oracle: PreTrainedModel) -> None:
    engine = Engine.from_hf(oracle, num_blocks=200, max_num_seqs=5, **LIMITS)
    size = largest_block(engine)
    shared = random_prompt(2 * size, seed=0)
    prompts = [[*shared[: size * n // 3], *random_prompt(3 + n, seed=n)] for n in range(8)]
    expected = [generated(oracle, prompt, 6) for prompt in prompts]
    assert engine.generate(prompts, max_new_tokens=6) == expected
    hit_before = engine.stats().groups[0].tokens_hit
    assert engine.generate(prompts, max_new_tokens=6) == expected
    hit = engine.stats().groups[0].tokens_hit - hit_before
    assert hit == sum((len(prompt) - 1) // size * size for prompt in prompts) > 0


def test_preempted_requests_get_the_same_tokens(oracle: PreTrainedModel) -> None:
    """They outgrow their blocks together, and the pool holds one longest request and no more."""
    roomy = Engine.from_hf(oracle, num_blocks=200, **LIMITS)
    prompts = [random_prompt(largest_block(roomy) - 3 - n, seed=n) for n in range(4)]
    limits = {**LIMITS, "max_model_len": len(prompts[0]) + 12}
    room = sum(Engine.from_hf(oracle, num_blocks=200, **limits).plan.blocks_per_request)
    engine = Engine.from_hf(oracle, num_blocks=room + 1, **limits)
    assert engine.generate(prompts, max_new_tokens=12) == [generated(oracle, prompt, 12) for prompt in prompts]
    assert engine.scheduler.num_preemptions > 0
