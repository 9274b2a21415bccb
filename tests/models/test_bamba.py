"""Bamba: Mamba-2 layers, and attention that turns a part of each head."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvhybrid.models.loading import model_from_config, model_from_hf
from tests.models.every_way import differences
from tests.models.paged_driver import PagedDriver, run_greedily
from tests.models.tiny_models import CONFIGS, random_prompt, tiny

TOLERANCE = 1e-4
"""Largest difference of a logit, in float32. Measured maxima: whole prompt 6.4e-6, token by token 8.5e-6,
random chunks 5.5e-6, ragged batch 8.6e-6."""

OPTIONS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "no attention, one group of heads": {
        "attn_layer_indices": None,
        "mamba_n_groups": 1,
        "mamba_d_head": "auto",
    },
    "attention in every layer but one, three groups, a long convolution": {
        "attn_layer_indices": [0, 1, 2, 4],
        "mamba_n_groups": 3,
        "mamba_d_conv": 6,
    },
    "whole heads turn, biases": {
        "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0},
        "attention_bias": True,
        "mamba_proj_bias": True,
        "mamba_conv_bias": False,
    },
    "a quarter of each head turns, slowly, and step sizes have limits": {
        "rope_parameters": {
            "rope_type": "linear",
            "factor": 4.0,
            "rope_theta": 700.0,
            "partial_rotary_factor": 0.25,
        },
        "time_step_limit": (0.7, 1.2),
    },
}


@pytest.mark.parametrize("option", OPTIONS)
def test_logits_however_the_prompts_are_cut_and_batched(option: str) -> None:
    oracle = tiny("bamba", **OPTIONS[option])
    found = differences(model_from_hf(oracle), oracle)
    assert max(found.values()) < TOLERANCE, found


def test_specs_say_what_each_layer_keeps() -> None:
    model = model_from_config({**CONFIGS["bamba"], "model_type": "bamba"}, seed=0)
    specs = model.layer_specs(8, torch.bfloat16)
    assert {name: spec.kind for name, spec in specs.items()} == {
        "layers.0.mamba": "mamba",
        "layers.1.self_attn": "full",
        "layers.2.mamba": "mamba",
        "layers.3.self_attn": "full",
        "layers.4.mamba": "mamba",
    }
    parts = {part.name: (part.shape, part.dtype) for part in specs["layers.0.mamba"].page_parts()}
    # 6 heads of 16, and B and C of two groups of 8
    assert parts == {"conv": ((128, 3), "bfloat16"), "ssm": ((6, 16, 8), "float32")}


def test_an_untrained_model_generates_varied_tokens() -> None:
    prompts = {f"s{n}": random_prompt(n, seed=n) for n in (4, 9, 30)}
    model = model_from_config({**CONFIGS["bamba"], "model_type": "bamba"}, seed=3)
    found = run_greedily(PagedDriver(model), prompts, 12)
    assert len({token for tokens in found.values() for token in tokens}) > 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mlp_bias": True}, "mlp_bias"),
        ({"mamba_n_heads": 5}, r"must be 96.*found 5 · 16"),
        ({"mamba_n_groups": 4}, r"layers\.0\.mamba: 6 heads cannot be divided evenly among 4 groups"),
        ({"rope_parameters": {"partial_rotary_factor": 0.1}}, r"partial_rotary_factor .* 16 .*found 0\.1"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "'yarn'"),
    ],
)
def test_config_that_the_family_cannot_follow_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model_from_config({**CONFIGS["bamba"], "model_type": "bamba", **changes})
