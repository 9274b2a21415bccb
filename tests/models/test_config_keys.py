"""Config keys: what a config leaves out has transformers' value, in every family."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
import transformers

from kvhybrid.models.decoder import Decoder
from kvhybrid.models.families import families
from kvhybrid.models.layers.cached import cached_layers

DEFAULTS = {
    "bamba": transformers.BambaConfig,
    "gemma2": transformers.Gemma2Config,
    "gemma3": transformers.Gemma3Config,
    "gemma3_text": transformers.Gemma3TextConfig,
    "gemma3n": transformers.Gemma3nConfig,
    "gemma3n_text": transformers.Gemma3nTextConfig,
    "gpt_oss": transformers.GptOssConfig,
    "granitemoehybrid": transformers.GraniteMoeHybridConfig,
    "jamba": transformers.JambaConfig,
    "llama4": transformers.Llama4Config,
    "llama4_text": transformers.Llama4TextConfig,
    "qwen3_next": transformers.Qwen3NextConfig,
    "t5gemma": transformers.T5GemmaConfig,
    "whisper": transformers.WhisperConfig,
}


def test_every_family_is_compared() -> None:
    assert sorted(DEFAULTS) == list(families.names())


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_keys_that_a_config_leaves_out_have_the_values_of_transformers(model_type: str) -> None:
    spelt_out = DEFAULTS[model_type]().to_dict()
    with torch.device("meta"):
        left_out, ours = (
            families.get(model_type).from_config(config) for config in ({"model_type": model_type}, spelt_out)
        )
    assert isinstance(ours, Decoder)
    shapes = [{name: weight.shape for name, weight in model.state_dict().items()} for model in (left_out, ours)]
    assert shapes[0] == shapes[1]
    needs = [{name: layer.need for name, layer in cached_layers(model).items()} for model in (left_out, ours)]
    assert needs[0] == needs[1]
    assert left_out.ropes == ours.ropes
    for field in fields(ours.config):
        values = [getattr(model.config, field.name) for model in (left_out, ours)]
        if all(callable(value) or isinstance(value, (bool, int, float)) for value in values):
            assert values[0] == values[1], field.name
