"""Plans of real configs: the figures of the reference, at other sizes too, and the presets."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvhybrid.engine.byte_pool import BytePool
from kvhybrid.errors import InputError
from kvhybrid.planning import CachePlan, plan_cache
from kvhybrid.planning.capacity import all_full, blocks_held, costs, longest_request, requests_at_once
from kvhybrid.planning.observed import Observation, observe
from kvhybrid.planning.rules import CacheOptions, layer_specs
from kvhybrid.report.plan_summary import PlanSummary
from kvhybrid.sessions.invocation import Invocation
from kvhybrid.sessions.plan import make_plan
from kvhybrid.sessions.plan_settings import PlanPool, PlanSettings
from kvhybrid.settings.model import ConfigSettings
from kvhybrid.settings.model_config import preset_names, read_model_config

ROOT = Path(__file__).resolve().parents[3]
GIB = 1 << 30


def planned(model: str, memory: str = "40GiB", config: dict[str, Any] | None = None, **keys: Any) -> PlanSummary:
    """A plan with 16,384 tokens in flight and states in bfloat16, as the reference counts."""
    settings = PlanSettings(
        model=ConfigSettings(path=model, config=config or {}),
        pool=PlanPool(memory=memory),
        **{"steps_in_flight": 2, "state_dtype": "bfloat16", **keys},
    )
    return make_plan(settings, Invocation.from_settings("plan", settings))[0]


REFERENCE = {
    "llama3_8b": ({"full": 32}, 16, 2_097_152, 20_480, [8192], 2.5),
    "gemma3_27b": (
        {**{f"sliding_window.{i}": 9 if i < 4 else 8 for i in range(6)}, "full": 10},
        16,
        1_310_720,
        32_768,
        [*[1089] * 6, 8192],
        2.225,
    ),
    "gemma2_9b": ({"sliding_window": 21, "full": 21}, 16, 2_752_512, 15_603, [512, 512], 15.237),
    "jamba_mini": (
        {**{f"mamba.{i}": 4 for i in range(7)}, "full": 4},
        80,
        1_310_720,
        32_768,
        [*[2] * 7, 3277],
        9.957,
    ),
    "gpt_oss_20b": ({"sliding_window": 12, "full": 12}, 16, 393_216, 109_226, [1033, 8192], 11.84),
    "llama4_scout": (
        {**{f"chunked_local.{i}": 12 for i in range(3)}, "full": 12},
        16,
        786_432,
        54_613,
        [*[1536] * 3, 8192],
        4.267,
    ),
}
"""Groups, tokens per block, bytes per block, blocks, blocks of a longest request, concurrency, at 40 GiB."""


@pytest.mark.parametrize("model", REFERENCE)
def test_the_planning_table_of_the_reference_comes_out(model: str) -> None:
    groups, block_size, block_bytes, num_blocks, request, concurrency = REFERENCE[model]
    length = 131_072 if model == "llama4_scout" else None
    plan = planned(model, max_model_len=length).plan
    found = {group.name: len(group.layers) for group in plan.config.groups}
    assert found == groups
    assert set(plan.config.block_sizes) == {block_size}
    assert (plan.bytes_per_block, plan.num_blocks) == (block_bytes, num_blocks)
    assert sorted(plan.blocks_per_request) == sorted(request)
    assert plan.concurrency == pytest.approx(concurrency, abs=0.005)


@cache
def seen(model: str) -> Observation:
    return observe(read_model_config("model.path", model))


ATTENTION = {
    "llama3_8b": (8, 128, 32, {}, 1),
    "gemma3_27b": (16, 128, 10, {"window": 1024}, 6),
    "gemma2_9b": (8, 256, 21, {"window": 4096}, 1),
    "gpt_oss_20b": (8, 64, 12, {"window": 128}, 1),
    "llama4_scout": (8, 128, 12, {"chunk": 8192}, 3),
}
"""Heads, head size, layers per group, the window or chunk of the other groups, and their number."""
WIDTHS = {"float8_e4m3fn": 1, "bfloat16": 2, "float32": 4}


@pytest.mark.parametrize("model", ATTENTION)
@pytest.mark.parametrize(
    ("memory", "length", "in_flight", "dtype", "tp"),
    [
        (40 * GIB, 8192, 16_384, "bfloat16", 1),
        (17 * GIB, 32_768, 2048, "float8_e4m3fn", 1),
        (GIB * 11 // 2, 10_001, 8192, "bfloat16", 4),
        (24 * GIB, 20_000, 512, "float32", 2),
    ],
)
def test_the_planning_table_at_other_sizes(
    model: str, memory: int, length: int, in_flight: int, dtype: str, tp: int
) -> None:
    heads, size, layers, other, count = ATTENTION[model]
    specs = layer_specs(seen(model), CacheOptions(kv_dtype=dtype, tp=tp))
    plan = plan_cache(specs, memory_bytes=memory, max_model_len=length, max_in_flight_tokens=in_flight)
    block = layers * 16 * (heads // tp) * 2 * size * WIDTHS[dtype]
    assert (plan.bytes_per_block, plan.num_blocks) == (block, memory // block)
    whole = -(-length // 16)
    step = min(in_flight, length)
    held = {
        "window": min(-(-(other.get("window", 0) + step - 2) // 16) + 1, whole),
        "chunk": min(-(-(other.get("chunk", 0) + step - 1) // 16), whole),
    }
    others = [held[kind] for kind in other] * count
    assert sorted(plan.blocks_per_request) == sorted([whole, *others])
    assert plan.concurrency == plan.num_blocks / (whole + sum(others))
    assert allocated(plan) == plan.memory_bytes == memory // block * block


@pytest.mark.parametrize(
    ("tp", "kv_dtype", "state_dtype", "block_size"),
    [
        (1, "bfloat16", "bfloat16", 80),  # 311,296 bytes of a state, 4,096 of a token: 76 tokens
        (2, "bfloat16", "bfloat16", 80),  # both are halved
        (1, "float8_e4m3fn", "bfloat16", 160),  # 152 tokens
        (4, "bfloat16", "float32", 160),
        (1, "float32", "bfloat16", 48),  # 38 tokens
    ],
)
def test_jamba_at_other_sizes(tp: int, kv_dtype: str, state_dtype: str, block_size: int) -> None:
    options = CacheOptions(kv_dtype=kv_dtype, state_dtype=state_dtype, tp=tp)
    specs = layer_specs(seen("jamba_mini"), options)
    for memory, length in ((40 * GIB, 262_144), (9 * GIB, 30_000)):
        plan = plan_cache(specs, memory_bytes=memory, max_model_len=length, max_in_flight_tokens=16_384)
        page = block_size * 2 * (8 // tp) * 128 * WIDTHS[kv_dtype]
        assert set(plan.config.block_sizes) == {block_size}
        assert plan.bytes_per_block == 4 * page
        assert plan.num_blocks == memory // (4 * page)
        assert plan.blocks_per_request == (*[2] * 7, -(-length // block_size))
        state = 8192 // tp * (3 + 16) * WIDTHS[state_dtype]
        assert plan.padding_bytes_per_block == (*[4 * (page - state)] * 7, 0)
        assert allocated(plan) == plan.memory_bytes


def allocated(plan: CachePlan) -> int:
    """The bytes that the engine's pool takes for ``plan``, on a device without memory."""
    pool = BytePool(plan, "meta")
    assert set(pool.views()) == set(plan.layer_specs)
    return pool.num_bytes


def test_what_a_uniform_cache_would_waste() -> None:
    """10 of 62 layers read 131,072 tokens, the others 1,024."""
    figures = planned("gemma3_27b", config={"vocab_size": 128}).to_json()
    assert figures["uniform_waste"] == 1 - (10 * 131_072 + 52 * 1024) / (62 * 131_072)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize(("kv_dtype", "width"), [("auto", 2), ("float8_e4m3fn", 1), ("float32", 4)])
def test_full_attention_scales_with_ranks_dtype_block_and_memory(tp: int, kv_dtype: str, width: int) -> None:
    small = {"num_hidden_layers": 4, "vocab_size": 128}  # for the sake of time, what is kept is the same
    for memory, block_size, length in (("1GiB", 16, 4096), ("3.5GiB", 64, 9000)):
        plan = planned(
            "llama3_8b",
            memory,
            small,
            tp=tp,
            kv_dtype=kv_dtype,
            block_size=block_size,
            max_model_len=length,
        ).plan
        token = 4 * 2 * (8 // tp) * 128 * width
        assert plan.bytes_per_block == block_size * token
        assert plan.num_blocks == int(float(memory[:-3]) * GIB) // plan.bytes_per_block
        assert plan.blocks_per_request == (-(-length // block_size),)


def test_without_a_length_it_is_the_models_or_what_fits() -> None:
    small = {"num_hidden_layers": 2, "vocab_size": 128}
    assert planned("llama3_8b", "10GiB", small).plan.max_model_len == 131_072
    short = planned("llama3_8b", "64MiB", small).plan
    assert short.max_model_len == longest_request(short) == (short.num_blocks - 1) * 16
    with pytest.raises(InputError, match=r"Lower max_model_len to \d+"):
        planned("llama3_8b", "64MiB", small, max_model_len=131_072)


def test_costs_add_up_and_the_twin_is_dearer() -> None:
    settings = PlanSettings(model=ConfigSettings(path="gemma3_27b", config={"vocab_size": 128}))
    summary, specs = make_plan(settings, Invocation.from_settings("plan", settings))
    plan = summary.plan
    twin = all_full(specs, plan)
    assert twin is not None
    for length in (1, 500, 1024, 20_000, 131_072):
        held = blocks_held(plan, length)
        found = costs(plan, held)
        assert sum(cost.num_bytes for cost in found) == sum(held) * plan.bytes_per_block
        assert [cost.kind for cost in found] == ["sliding_window 1024", "full", "padding"]
        assert sum(cost.share for cost in found) == pytest.approx(1)
        full_bytes = sum(blocks_held(twin, length)) * twin.bytes_per_block
        assert full_bytes == -(-length // 16) * 16 * 62 * 2 * 16 * 128 * 2
        assert requests_at_once(plan, length) * sum(held) <= plan.num_blocks
    assert sum(blocks_held(plan, 131_072)) * plan.bytes_per_block < full_bytes / 4


def test_a_cache_that_can_never_hit_is_warned_of() -> None:
    tiny = {"num_hidden_layers": 8, "vocab_size": 128, "num_experts": 2}
    assert planned("jamba_mini", config=tiny).warnings == []
    (short,) = planned("jamba_mini", config=tiny, max_model_len=64).warnings
    assert "no request can hit: blocks of all groups end together every 80 tokens" in short
    (steps,) = planned("jamba_mini", config=tiny, max_batched_tokens=64).warnings
    assert "states are kept every 80 tokens, but a step reads at most 64" in steps


NAMEPLATES = {
    "gemma2_9b": 9.24,
    "gemma2_27b": 27.2,
    "gemma3_4b": 3.88,
    "gemma3_12b": 11.8,
    "gemma3_27b": 27.0,
    "gemma3n_e4b": 6.9,
    "gemma4_12b": 12.0,
    "llama3_8b": 8.03,
    "llama3_70b": 70.6,
    "llama4_scout": 109,
    "gpt_oss_20b": 20.9,
    "gpt_oss_120b": 117,
    "jamba_mini": 52,
    "jamba_large": 398,
    "bamba_9b": 9.78,
    "granite4_h_small": 32,
    "qwen3_8b": 8.2,
    "qwen3_next_80b": 80,
    "qwen3_5_27b": 27,
    "qwen3_5_35b_a3b": 35,
    "nemotron_nano_9b": 8.9,
    "nemotron3_nano_30b": 31.6,
    "falcon_h1_7b": 7.6,
    "lfm2_1_2b": 1.17,
    "zamba2_7b": 7.4,
    "kimi_linear_48b": 49,
    "olmo3_7b": 7.3,
    "olmo3_32b": 32.2,
    "command_r7b": 8.03,
    "minimax_text_01": 456,
    "mistral_7b": 7.25,
    "mistral_small_24b": 23.6,
    "deepseek_v3": 671,
}
"""Billions of parameters that the publishers name, of the text model alone."""


def test_every_preset_is_checked_and_says_where_it_is_from() -> None:
    assert set(preset_names()) == set(NAMEPLATES)
    for name in preset_names():
        lines = (ROOT / "conf" / "presets" / "model" / f"{name}.yaml").read_text().splitlines()
        assert lines[0].startswith("# ")
        assert lines[1].startswith("# Source: config.json of ")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("falcon_h1_7b", "lfm2_1_2b") else pytest.mark.long)
        for name in NAMEPLATES
    ],
)
def test_a_preset_has_the_parameters_that_its_publisher_names(name: str) -> None:
    seen = observe(read_model_config("model.path", name))
    assert seen.num_parameters / 1e9 == pytest.approx(NAMEPLATES[name], rel=0.02)


@pytest.mark.parametrize(
    ("cache", "preset"),
    [
        ("gemma3_27b", "gemma3_27b"),
        ("jamba_mini", "jamba_mini"),
        ("llama", "llama3_8b"),
        ("gpt_oss", "gpt_oss_20b"),
    ],
)
def test_the_layers_that_replay_spells_out_are_those_of_the_preset(cache: str, preset: str) -> None:
    from kvhybrid.replay.layers import CacheSettings, LayerSettings

    spelt = yaml.safe_load((ROOT / "conf" / "cache" / f"{cache}.yaml").read_text())["layers"]
    by_hand = CacheSettings(layers=[LayerSettings(**layer) for layer in spelt]).layer_specs(16)
    plan = planned(preset, state_dtype="auto", max_model_len=65_536).plan
    assert Counter(map(shape, by_hand.values())) == Counter(map(shape, plan.layer_specs.values()))


def shape(spec: Any) -> tuple[Any, ...]:
    """What a layer keeps, whatever its block size."""
    window = getattr(spec, "window", None)
    if spec.state:
        return spec.kind, tuple((part.shape, part.dtype) for part in spec.page_parts())
    return spec.kind, window, tuple((part.shape[1:], part.dtype) for part in spec.page_parts())
