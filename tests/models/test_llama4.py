"""Llama 4: chunks and full layers without rotation, tuned queries, experts that scale what they read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from kvhybrid.models.layers.scaled_rope import read_rope
from kvhybrid.models.loading import load_model, model_from_config, model_from_hf
from tests.models.every_way import differences, engine_tokens
from tests.models.paged_driver import PagedDriver, run_greedily
from tests.models.tiny_models import CONFIGS, full_logits, generated, random_prompt, randomised, tiny

TOLERANCE = 1e-4
"""Largest difference of a logit, in float32. Measured maxima: whole prompt 3.0e-6, token by token 3.9e-6, random
chunks 2.5e-6, ragged batch of eight 2.9e-6."""

SCOUT_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 1.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "scout": {"interleave_moe_layer_step": 1, "rope_parameters": SCOUT_ROPE},
    "maverick": {"interleave_moe_layer_step": 2, "use_qk_norm": False},
    "two experts, biases, no tuning": {
        "num_experts_per_tok": 2,
        "attention_bias": True,
        "attn_temperature_tuning": False,
    },
    "chunks in layers of either kind": {
        "layer_types": ["full_attention", *["chunked_attention"] * 3, "full_attention"],
        "attention_chunk_size": 6,
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_however_the_prompts_are_cut_and_batched(variant: str) -> None:
    oracle = tiny("llama4_text", **VARIANTS[variant])
    found = differences(model_from_hf(oracle), oracle)
    assert max(found.values()) < TOLERANCE, found


def test_greedy_tokens_equal_those_of_generate() -> None:
    oracle = tiny("llama4_text", **VARIANTS["scout"])
    prompts = {f"s{n}": random_prompt(n, seed=n) for n in (1, 3, 7, 8, 9, 13, 20, 31)}
    expected = {name: generated(oracle, prompt, 10) for name, prompt in prompts.items()}
    assert len({token for tokens in expected.values() for token in tokens}) > 16
    assert run_greedily(PagedDriver(model_from_hf(oracle)), prompts, 10) == expected
    assert engine_tokens(oracle, list(prompts.values()), 10) == list(expected.values())


@pytest.mark.parametrize(
    "change",
    [
        {"attention_chunk_size": 512},
        {"no_rope_layers": [1] * 5, "layer_types": ["chunked_attention"] * 2 + ["full_attention"] * 3},
        {"attn_temperature_tuning": False},
        {"floor_scale": 50},
        {"use_qk_norm": False},
        {"num_experts_per_tok": 2},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_feature_moves_the_logits(change: dict[str, Any]) -> None:
    """Without this the comparisons above would not notice that one is missing."""
    prompt = random_prompt(60, seed=1)
    with_it, without = (full_logits(tiny("llama4_text", **changes), prompt) for changes in ({}, change))
    assert (with_it - without).abs().max() > 1000 * TOLERANCE


def test_specs_say_what_each_layer_keeps() -> None:
    model = model_from_config({**CONFIGS["llama4_text"], "model_type": "llama4_text"})
    specs = model.layer_specs(16, torch.bfloat16)
    assert [spec.kind for spec in specs.values()] == ["chunked_local"] * 2 + ["full", "chunked_local", "full"]
    assert [spec.live(21) for spec in specs.values()][1:3] == [(range(16, 21),), (range(21),)]


def test_multimodal_checkpoint_loads_its_text_part(tmp_path: Path) -> None:
    vision = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "vision_output_dim": 16,
        "projector_input_dim": 16,
        "projector_output_dim": 16,
        "image_size": 16,
        "patch_size": 8,
    }
    text = {**CONFIGS["llama4_text"], "model_type": "llama4_text"}
    config = transformers.Llama4Config(text_config=text, vision_config=vision)
    config._attn_implementation = config.text_config._attn_implementation = "eager"
    oracle = randomised(transformers.Llama4ForConditionalGeneration(config).language_model)
    whole = transformers.Llama4ForConditionalGeneration(config)
    whole.language_model.load_state_dict(oracle.state_dict())
    whole.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "llama4"
    prompt = random_prompt(40, seed=2)
    found = PagedDriver(load_model(tmp_path)).step({"a": prompt})["a"]
    assert (found - full_logits(oracle, prompt)).abs().max() < TOLERANCE


def test_older_config_without_layer_types_and_rope_parameters(tmp_path: Path) -> None:
    oracle = tiny("llama4_text", no_rope_layers=None, no_rope_layer_interval=2, rope_parameters=SCOUT_ROPE)
    oracle.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    scaling = config.pop("rope_parameters")
    for key in ("layer_types", "moe_layers", "use_qk_norm"):
        del config[key]
    config |= {"no_rope_layers": [], "rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}
    path.write_text(json.dumps(config))
    prompt = random_prompt(40, seed=3)
    found = PagedDriver(load_model(tmp_path)).step({"a": prompt})["a"]
    assert (found - full_logits(oracle, prompt)).abs().max() < TOLERANCE


@pytest.mark.parametrize("high", [1.0, 4.0])
def test_llama3_rope_turns_as_fast_as_that_of_transformers(high: float) -> None:
    parameters = {**SCOUT_ROPE, "high_freq_factor": high, "original_max_position_embeddings": 8192}
    config = transformers.Llama4TextConfig(head_dim=128, rope_parameters=parameters)
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    found = read_rope(128, parameters, 1.0).frequencies(torch.device("cpu"))
    assert torch.allclose(found, expected, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["sliding_attention"] * 5}, "layer_types must list 'chunked_attention' or"),
        ({"layer_types": ["chunked_attention"] * 5, "attention_chunk_size": None}, "needs attention_chunk_size"),
        ({"no_rope_layers": [1, 0]}, r"no_rope_layers must hold .* 5 layers, found \[1, 0\]"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "'longrope'.*default, linear, llama3, yarn"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "'llama3' needs original_max.*, low_freq"),
    ],
)
def test_config_that_the_family_cannot_follow_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model_from_config({**CONFIGS["llama4_text"], "model_type": "llama4_text", **changes})
