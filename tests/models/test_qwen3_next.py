"""Qwen3-Next: gated delta nets, gated attention that turns a part of each head, experts with a shared one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvhybrid.models.base import BackendChoice
from kvhybrid.models.loading import load_model, model_from_config, model_from_hf
from tests.models.every_way import differences
from tests.models.paged_driver import PagedDriver, run_greedily
from tests.models.tiny_models import CONFIGS, full_logits, random_prompt, tiny

TOLERANCE = 1e-4
"""Largest difference of a logit, in float32. Measured maxima: whole prompt 2.1e-5, token by token 1.9e-5,
random chunks 2.0e-5, ragged batch 2.3e-5, all where embeddings are tied; elsewhere 1.1e-5."""

OPTIONS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "no attention, no experts, as many key heads as value heads, a short convolution": {
        "layer_types": ["linear_attention"] * 5,
        "num_experts": 0,
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 3,
        "linear_conv_kernel_dim": 2,
    },
    "one layer in three is attention, biases, whole heads turn, slowly": {
        "layer_types": [*["linear_attention"] * 2, "full_attention", *["linear_attention"] * 2],
        "attention_bias": True,
        "rope_parameters": {
            "rope_type": "linear",
            "factor": 4.0,
            "rope_theta": 700.0,
            "partial_rotary_factor": 1.0,
        },
    },
    "experts in every other layer, their shares as they are": {
        "mlp_only_layers": [],
        "decoder_sparse_step": 2,
        "norm_topk_prob": False,
        "tie_word_embeddings": True,
    },
}


@pytest.mark.parametrize("option", OPTIONS)
def test_logits_however_the_prompts_are_cut_and_batched(option: str) -> None:
    oracle = tiny("qwen3_next", **OPTIONS[option])
    found = differences(model_from_hf(oracle), oracle)
    assert max(found.values()) < TOLERANCE, found


def test_checkpoint_with_the_keys_and_names_of_released_ones(tmp_path: Path) -> None:
    """Experts one by one, weights for several tokens at once, which are left out, an interval for the kinds of
    layers, and older keys for rotation."""
    oracle = tiny("qwen3_next", layer_types=None, full_attention_interval=3)
    oracle.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    assert "model.layers.0.mlp.experts.3.up_proj.weight" in weights
    save_file({**weights, "mtp.fc.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    config["full_attention_interval"] = 1 + config.pop("layer_types").index("full_attention")
    rope = config.pop("rope_parameters")
    config |= {"rope_scaling": None, "rope_theta": rope["rope_theta"], "partial_rotary_factor": 0.25}
    (tmp_path / "config.json").write_text(json.dumps(config))
    prompt = random_prompt(30, seed=0)
    found = PagedDriver(load_model(tmp_path)).step({"a": prompt})["a"]
    assert (found - full_logits(oracle, prompt)).abs().max() < TOLERANCE


def test_specs_say_what_each_layer_keeps() -> None:
    model = model_from_config({**CONFIGS["qwen3_next"], "model_type": "qwen3_next"}, seed=0)
    specs = model.layer_specs(8, torch.bfloat16)
    assert {name: spec.kind for name, spec in specs.items()} == {
        "layers.0.linear_attn": "mamba",
        "layers.1.linear_attn": "mamba",
        "layers.2.self_attn": "full",
        "layers.3.linear_attn": "mamba",
        "layers.4.self_attn": "full",
    }
    parts = {part.name: (part.shape, part.dtype) for part in specs["layers.0.linear_attn"].page_parts()}
    # 2 heads of 8 for queries, as many for keys, and 4 heads of 12 for values
    assert parts == {"conv": ((80, 3), "bfloat16"), "state": ((4, 8, 12), "float32")}


def test_an_untrained_model_generates_varied_tokens() -> None:
    prompts = {f"s{n}": random_prompt(n, seed=n) for n in (4, 9, 30)}
    model = model_from_config({**CONFIGS["qwen3_next"], "model_type": "qwen3_next"}, seed=3)
    found = run_greedily(PagedDriver(model), prompts, 12)
    assert len({token for tokens in found.values() for token in tokens}) > 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["linear_attention"]}, "'linear_attention' or 'full_attention' for each of 5 layers"),
        ({"layer_types": ["mamba"] * 5}, r"for each of 5 layers, found \['mamba'"),
        ({"linear_num_key_heads": 3}, r"layers\.0\.linear_attn: 4 value heads cannot be .* among 3 key heads"),
        ({"partial_rotary_factor": 0.1}, r"partial_rotary_factor .* 16 .*found 0\.1"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "'yarn'"),
    ],
)
def test_config_that_the_family_cannot_follow_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model_from_config({**CONFIGS["qwen3_next"], "model_type": "qwen3_next", **changes})


def test_a_backend_that_is_not_there_is_refused() -> None:
    config = {**CONFIGS["qwen3_next"], "model_type": "qwen3_next"}
    with pytest.raises(ValueError, match="unknown gated delta backend 'fast'; accepted: torch"):
        model_from_config(config, backends=BackendChoice(gated_delta="fast"))
