"""The cache takes the bytes that were planned, and nothing beside them grows with what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from kvhybrid.engine.engine import Engine
from kvhybrid.models.loading import model_from_config

SHARED = {
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
}
CONFIGS: Mapping[str, dict[str, Any]] = {
    "gemma": {
        **SHARED,
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "sliding_window": 64,
        "layer_types": [*["sliding_attention"] * 5, "full_attention"],
    },
    "jamba": {
        **SHARED,
        "model_type": "jamba",
        "num_hidden_layers": 8,
        "num_experts": 2,
        "mamba_expand": 8,
    },
    "granite": {
        **SHARED,
        "model_type": "granitemoehybrid",
        "shared_intermediate_size": 32,
        "num_hidden_layers": 4,
        "layer_types": [*["linear_attention"] * 3, "full_attention"],
        "num_local_experts": 0,
        "mamba_n_heads": 8,
        "mamba_n_groups": 1,
        "mamba_d_state": 64,
        "mamba_d_head": 8,
    },
}
MEMORY = 16 << 20
PROMPTS = [[(7 * i + 13 * r) % 256 for i in range(40)] for r in range(12)]


def storages(tensors: list[torch.Tensor]) -> dict[int, int]:
    """Bytes by address."""
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}


@pytest.mark.parametrize("family", CONFIGS)
def test_layers_keep_their_pages_in_the_planned_bytes_and_nowhere_else(family: str) -> None:
    engine = Engine(model_from_config(CONFIGS[family]), memory_bytes=MEMORY)
    pool = storages(list(engine.pool.tensors))
    assert sum(pool.values()) == engine.plan.memory_bytes
    assert engine.plan.memory_bytes == pytest.approx(MEMORY, rel=0.01)
    pages = [part for cache in engine.pool.views().values() for part in cache.values()]
    assert storages(pages).keys() <= pool.keys()


@pytest.mark.parametrize("family", CONFIGS)
def test_what_stays_allocated_in_the_middle_of_a_run_is_the_plan_within_a_percent(family: str) -> None:
    """By torch's allocator: all that was asked for since before the engine was built, and not given back while
    every request holds blocks. Measured: the planned bytes exactly, in all three."""
    model = model_from_config(CONFIGS[family])
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        engine = Engine(model, memory_bytes=MEMORY, max_batched_tokens=1024)
        for prompt in PROMPTS:
            engine.add_request(prompt, max_new_tokens=64)
        for _ in range(2):
            engine.step()
    assert len(engine.scheduler.running) == len(PROMPTS)
    assert engine.stats().usage > 0.04
    held = sum(event.self_cpu_memory_usage for event in profiler.events())
    assert held == pytest.approx(engine.plan.memory_bytes, rel=0.01)
