"""Every way to cut and batch prompts: what a family has to get right in each of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvhybrid.engine.engine import Engine
from kvhybrid.models.base import HybridModel
from tests.models.paged_driver import PagedDriver, run_ragged
from tests.models.tiny_models import full_logits, random_prompt

RAGGED = (1, 2, 5, 17, 33, 48, 64, 90)
PROMPTS = {f"s{length}": random_prompt(length, seed=length) for length in RAGGED}


def differences(ours: HybridModel, oracle: PreTrainedModel) -> dict[str, float]:
    """The largest difference of a logit from the oracle's, way by way."""
    expected = {name: full_logits(oracle, prompt) for name, prompt in PROMPTS.items()}
    assert expected["s90"].std() > 0.3, "an oracle with flat logits tests nothing"
    driver = PagedDriver(ours)
    found: dict[str, dict[str, Tensor]] = {
        "whole": PagedDriver(ours).step({"s90": PROMPTS["s90"]}),
        "token by token": {"s48": torch.cat([driver.step({"a": [token]})["a"] for token in PROMPTS["s48"]])},
        "random chunks": run_ragged(PagedDriver(ours, block_size=3), {"s90": PROMPTS["s90"]}, (1, 2, 3, 7, 19)),
        "ragged batch of eight": run_ragged(PagedDriver(ours), PROMPTS, (1, 1, 4, 13, 50)),
    }
    return {
        way: max(float((logits - expected[name]).abs().max()) for name, logits in parts.items())
        for way, parts in found.items()
    }


def engine_tokens(oracle: PreTrainedModel, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
    """Greedy tokens of an engine, where a second run hits the cache and a small pool preempts; all agree."""
    limits = {"block_size": 4, "max_batched_tokens": 16, "max_model_len": max(map(len, prompts)) + num_tokens}
    roomy = Engine.from_hf(oracle, num_blocks=1000, **limits)
    first = roomy.generate(prompts, num_tokens)
    assert roomy.generate(prompts, num_tokens) == first
    assert roomy.stats().groups[0].tokens_hit > sum(map(len, prompts)) // 2
    tight = Engine.from_hf(oracle, num_blocks=sum(roomy.plan.blocks_per_request) + 1, **limits)
    assert tight.generate(prompts, num_tokens) == first
    assert tight.scheduler.num_preemptions > 0
    return first
