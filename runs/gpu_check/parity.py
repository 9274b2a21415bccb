"""Models on one choice of kernels against transformers, which computes in float32 on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvhybrid.engine.engine import Engine
from kvhybrid.models.base import BackendChoice, HybridModel
from kvhybrid.models.loading import model_from_hf

SIZES = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 64}
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": {**SIZES, "num_hidden_layers": 4, "sliding_window": 128, "query_pre_attn_scalar": 64},
    "gemma3_text": {
        **SIZES,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
        "sliding_window": 128,
        "query_pre_attn_scalar": 64,
    },
    "gpt_oss": {**SIZES, "num_hidden_layers": 4, "sliding_window": 128, "num_local_experts": 4},
    "llama4_text": {
        **SIZES,
        "num_hidden_layers": 4,
        "attention_chunk_size": 256,
        "intermediate_size_mlp": 256,
        "num_local_experts": 2,
        "interleave_moe_layer_step": 2,
    },
    "jamba": {
        **SIZES,
        "num_hidden_layers": 4,
        "attn_layer_period": 4,
        "attn_layer_offset": 2,
        "num_experts": 2,
    },
    "bamba": {**SIZES, **MAMBA2, "num_hidden_layers": 4, "attn_layer_indices": [2]},
}
LENGTHS = {"prompt": 700, "chunks": 700, "decode": 65}
"""Tokens: a prompt at once, one in steps of 150 tokens, and one token by token."""
STEPS = {"prompt": 2048, "chunks": 150, "decode": 1}


@dataclass(frozen=True)
class Parity:
    """Largest differences of a logit of the last token, as shares of the logits' standard deviation."""

    family: str
    backends: BackendChoice
    differences: dict[str, float]
    """By way; empty where the choice was refused or failed."""
    refusal: str = ""
    failure: str = ""


@torch.no_grad()
def oracle(family: str, dtype: torch.dtype, **changes: Any) -> Any:
    """A transformers model on the CPU in float32, its random weights rounded to ``dtype`` before."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **{**FAMILIES[family], **changes})
    with hidden("mamba_ssm", "causal_conv1d"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and not name.endswith("A_log"):
            weight.copy_(torch.randn(weight.shape, generator=generator) * weight.shape[-1] ** -0.5)
        elif name.endswith("sinks"):
            weight.copy_(torch.randn(weight.shape, generator=generator))
    return model.to(dtype).float().eval()


@contextmanager
def hidden(*packages: str) -> Iterator[None]:
    """Transformers takes the kernels of these for its own if it can import them with a family's module."""
    found = {name: sys.modules.get(name) for name in packages}
    sys.modules.update(dict.fromkeys(packages))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name, module in found.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


def compare(
    family: str,
    choices: list[BackendChoice],
    device: str,
    dtype: torch.dtype,
    lengths: dict[str, int] | None = None,
    **changes: Any,
) -> Iterator[Parity]:
    """One result for each of ``choices``, in order; ``changes`` are keys of the family's config."""
    lengths = lengths or LENGTHS
    theirs = oracle(family, dtype, **changes)
    generator = torch.Generator().manual_seed(1)
    prompt: list[int] = torch.randint(1, 512, (max(lengths.values()),), generator=generator).tolist()
    with torch.no_grad():
        expected = theirs(torch.tensor([prompt]), use_cache=False).logits[0]
    for choice in choices:
        try:
            ours = model_from_hf(theirs, dtype, backends=choice).to(device)
            found = {
                way: last_logits(ours, prompt[:length], STEPS[way], device).float().cpu()
                for way, length in lengths.items()
            }
        except ValueError as error:
            yield Parity(family, choice, {}, refusal=one_line(error))
            continue
        except Exception as error:  # a kernel may fail in any way, and the rows behind it are still wanted
            yield Parity(family, choice, {}, failure=one_line(error))
            continue
        spread = float(expected.std())
        differences = {
            way: float((logits - expected[lengths[way] - 1]).abs().max()) / spread for way, logits in found.items()
        }
        yield Parity(family, choice, differences)


def one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split()).removeprefix("ValueError: ")[:300]


def last_logits(model: HybridModel, prompt: list[int], step: int, device: str) -> Tensor:
    """The logits of the prompt's last token, computed in steps of at most ``step`` tokens."""
    seen: list[Tensor] = []
    hook = model.register_forward_hook(lambda module, inputs, logits_RV: seen.append(logits_RV))
    try:
        engine = Engine(
            model,
            block_size=max(16, model.page_multiple),
            num_blocks=200,
            max_model_len=len(prompt) + 1,
            max_batched_tokens=step,
            device=device,
        )
        engine.generate([prompt], 1)
    finally:
        hook.remove()
    return seen[-1][-1]
