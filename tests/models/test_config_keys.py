"""Config keys: what a config leaves out has transformers' value, and what no model can have is refused."""

from __future__ import annotations

import json
import random
from dataclasses import fields
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from kvhybrid.models.checkpoint import CheckpointError
from kvhybrid.models.config import KEY, Key
from kvhybrid.models.decoder import Decoder
from kvhybrid.models.families import families
from kvhybrid.models.layers.cached import cached_layers
from kvhybrid.models.layers.scaled_rope import RopeKeys
from kvhybrid.models.loading import load_model, unfilled_model
from tests.models.tiny_encoder_decoders import STACK, WHISPER
from tests.models.tiny_models import CONFIGS

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


# ---- values that no model can have


def config_of(model_type: str) -> dict[str, Any]:
    """Every key that the family reads, small."""
    if model_type == "t5gemma":
        return {"model_type": model_type, "encoder": dict(STACK), "decoder": dict(STACK)}
    if model_type == "whisper":
        return {"model_type": model_type, **WHISPER}
    return {"model_type": model_type, **CONFIGS[model_type]}


def keys_of(kind: type[Any]) -> list[str]:
    """The names of a config's keys, those of its parts included."""
    found = []
    for field in fields(kind):
        key = field.metadata.get(KEY)
        if isinstance(key, Key):
            found.append(key.name or field.name)
        elif key is not None:
            found += keys_of(key)
    return found


FAMILIES = [*sorted(CONFIGS), "t5gemma", "whisper"]
EVERY_KEY = [
    (model_type, key) for model_type in FAMILIES for key in keys_of(families.get(model_type).config_class)
]
WRONG = ["\x00", {"a": {}}, [[]], [None], -1, -0.5]
"""For every key."""
IGNORED = {
    ("rope_scaling", "{'a': {}}"),
    ("rope_parameters", "{'a': {}}"),
    ("position_embedding_type", "\x00"),
}
"""Keys of an object that nothing reads; and whatever is not "rope" is no rotation."""
ODD = [nan, inf, -inf, 10**30, 10**9, [-1], ["\x00"], [10**30], {"": -1}, None, 0, 1, True, 2.5, "silu", [], {}]
"""Some are values of some key."""


def refusal(config: dict[str, Any]) -> str | None:
    """What is said against the config; None if it is read."""
    try:
        unfilled_model(config)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("model_type", "key"), EVERY_KEY)
def test_a_value_that_a_key_cannot_have_is_refused_on_one_line_that_names_it(model_type: str, key: str) -> None:
    for value in [*WRONG, *ODD]:
        config = config_of(model_type)
        in_decoder = model_type == "t5gemma" and not key.startswith("tie_")
        (config["decoder"] if in_decoder else config)[key] = value
        said = refusal(config)
        assert said is None or "\n" not in said
        if value in WRONG and (key, str(value)) not in IGNORED:
            assert said is not None, f"{key} = {value!r} was accepted"
            assert key in said, f"{key} = {value!r}: {said}"


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_config_of_any_other_values_is_read_or_refused_but_never_fails(model_type: str) -> None:
    """Two wrong values at a time, and wrong values in the dict of the rope."""
    draw = random.Random(0)
    keys = [key for of, key in EVERY_KEY if of == model_type]
    keys += ["model_type", "text_config", "encoder", "decoder"]
    ropes = [*keys_of(RopeKeys), "partial_rotary_factor", "sliding_attention", "full_attention"]
    values = [*WRONG, *ODD, 2, 7, "yarn", "llama3", "linear", ["sliding_attention"] * 4]
    for _ in range(150):
        changed = config_of(model_type)
        stack = changed["decoder"] if model_type == "t5gemma" else changed
        stack["rope_parameters"] = {key: draw.choice(values) for key in draw.sample(ropes, 3)}
        stack.update({key: draw.choice(values) for key in draw.sample(keys, 2)})
        refusal(changed)


def test_sizes_that_no_machine_can_hold_are_refused_before_any_weights_are_read(tmp_path: Path) -> None:
    sizes = {"hidden_size": 2**31 - 1, "intermediate_size": 2**31 - 1, "head_dim": 2}
    (tmp_path / "config.json").write_text(json.dumps({**CONFIGS["gemma2"], "model_type": "gemma2", **sizes}))
    with pytest.raises(ValueError, match="no model can be built with the sizes in the config: "):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"vocab_size": ' + "1" * 5000 + "}", "cannot be read: "),
        ("\udcff", "cannot be read: "),
    ],
)
def test_a_file_that_is_no_config_is_refused_with_its_name(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointError, match=rf"config\.json: .*{message}") as refusal:
        load_model(tmp_path)
    assert "\n" not in str(refusal.value)
