"""Granite 4 hybrid: Mamba-2 layers, attention with or without rotation, experts or none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from kvhybrid.models.loading import load_model, model_from_config, model_from_hf
from tests.models.every_way import differences
from tests.models.paged_driver import PagedDriver
from tests.models.tiny_models import CONFIGS, full_logits, random_prompt, tiny

TOLERANCE = 1e-4
"""Largest difference of a logit, in float32. Measured maxima: whole prompt 1.3e-5, token by token 2.1e-5,
random chunks 1.4e-5, ragged batch 2.0e-5."""

OPTIONS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "attention turns": {
        "position_embedding_type": "rope",
        "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 700.0},
        "attention_bias": True,
    },
    "no experts": {"num_local_experts": 0},
    "one expert for each token": {"num_experts_per_tok": 1, "tie_word_embeddings": True},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_logits_however_the_prompts_are_cut_and_batched(option: str) -> None:
    oracle = tiny("granitemoehybrid", **OPTIONS[option])
    found = differences(model_from_hf(oracle), oracle)
    assert max(found.values()) < TOLERANCE, found


def test_checkpoint_with_the_names_of_released_ones(tmp_path: Path) -> None:
    """Experts have other names on disk than in a live model; older configs say mamba and attention."""
    oracle = tiny("granitemoehybrid")
    oracle.save_pretrained(tmp_path)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert "model.layers.0.block_sparse_moe.input_linear.weight" in names
    config = json.loads((tmp_path / "config.json").read_text())
    config["layer_types"] = ["mamba", "mamba", "attention", "mamba", "attention"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    prompt = random_prompt(30, seed=0)
    found = PagedDriver(load_model(tmp_path)).step({"a": prompt})["a"]
    assert (found - full_logits(oracle, prompt)).abs().max() < TOLERANCE


def test_specs_say_what_each_layer_keeps() -> None:
    model = model_from_config({**CONFIGS["granitemoehybrid"], "model_type": "granitemoehybrid"}, seed=0)
    specs = model.layer_specs(8, torch.float32)
    assert [spec.kind for spec in specs.values()] == ["mamba", "mamba", "full", "mamba", "full"]


@pytest.mark.parametrize("kinds", [["linear_attention"], ["mamba", "full_attention", "ssm", "mamba", "mamba"]])
def test_layer_types_that_do_not_fit_are_refused(kinds: list[str]) -> None:
    config = {**CONFIGS["granitemoehybrid"], "model_type": "granitemoehybrid", "layer_types": kinds}
    with pytest.raises(ValueError, match=r"'linear_attention' or .*'full_attention' or .* for each of 5 layers"):
        model_from_config(config)
