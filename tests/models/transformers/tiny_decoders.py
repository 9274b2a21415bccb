"""Small decoders of transformers with random weights, what they generate by themselves, and our engine on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvhybrid.checkpoints import with_transformers
from kvhybrid.engine.engine import Engine
from kvhybrid.models.base import ForwardBatch
from tests.kvhybrid.planning.tiny_models import DELTA, HYBRIDS, ONE_GROUP, tiny_config, tiny_model

PLAIN: dict[str, dict[str, Any]] = {
    "deepseek_v3": {**ONE_GROUP, "num_key_value_heads": 4, "kv_lora_rank": 24, "qk_rope_head_dim": 8},
    "llama": {},
    "mistral": {},
    "mixtral": {},
    "phi3": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": {},
}
"""Types with one kind of layer."""

SWA = {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 16}
SMALLER: dict[str, dict[str, Any]] = {
    "inkling_text": SWA,
    "inkling2_text": SWA,
    "inkling2_loop_text": SWA,
    "lara_mini": DELTA,
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2},
}
"""Sizes that keep blocks short, for types whose default states or heads are large."""
TYPES = sorted({*PLAIN, *HYBRIDS} - {"dots3_note_text"})
"""Not dots3_note: its blocks have sizes whose common multiple is longer than these models' prompts."""
BLOCK_SIZE = 4


def decoder(model_type: str) -> Any:
    """The model. It is the same one every time."""
    sizes = {**{**PLAIN, **HYBRIDS}[model_type], **SMALLER.get(model_type, {})}
    model: Any = tiny_model(tiny_config(model_type, sizes))
    with torch.no_grad():  # so that a token depends on more than the one before
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.add_(torch.randn_like(weight), alpha=0.1)
    model.generation_config.eos_token_id = None
    return model


def engine_on(model: Any, **options: Any) -> Engine:
    limits = {"block_size": BLOCK_SIZE, "num_blocks": 400, "max_model_len": 64}
    return Engine(with_transformers(model), **{**limits, **options})


def random_tokens(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(3, 64, (length,), generator=generator).tolist()
    return tokens


def prompts_with_shared_prefixes(shared: int) -> list[list[int]]:
    """Eight of them: two short ones, and six that begin with the same ``shared`` tokens."""
    prefix = random_tokens(shared, seed=1)
    own = [random_tokens(length, seed=10 + length) for length in (1, 3, 1, 2, 5, 7, 8, 11)]
    return [*own[:2], *(prefix + tail for tail in own[2:])]


def logits_difference(model: Any, engine: Engine, prompt: list[int]) -> float:
    """The largest difference of a logit after ``prompt``, in the engine, from one pass without a cache, in
    standard deviations of the logits."""
    with torch.no_grad():
        expected_V = model(torch.tensor([prompt]), use_cache=False).logits[0, -1]
    found: list[torch.Tensor] = []
    forward = engine.model.forward

    def recorded(batch: ForwardBatch) -> torch.Tensor:
        found.append(forward(batch))
        return found[-1]

    engine.model.forward = recorded  # type: ignore[method-assign]
    engine.generate([prompt], 1)
    engine.model.forward = forward  # type: ignore[method-assign]
    return float((found[-1][0] - expected_V).abs().max() / expected_V.std())


def greedy(model: Any, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
    """By transformers' own ``generate``, prompt by prompt."""
    found = []
    for prompt in prompts:
        tokens = torch.tensor([list(prompt)])
        out = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        found.append(out[0, len(prompt) :].tolist())
    return found
