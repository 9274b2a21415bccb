"""The keys of a rope: every family that rotates reads them as transformers does."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import transformers

from kvhybrid.models.decoder import Decoder
from kvhybrid.models.families import family_of
from kvhybrid.models.layers.rope import Rope
from kvhybrid.models.loading import model_from_hf
from tests.models.paged_driver import PagedDriver
from tests.models.tiny_models import CLASSES, CONFIGS, full_logits, random_prompt, tiny

TOLERANCE = 1e-4
PROMPT = random_prompt(60, seed=1)
ORIGINAL = {"factor": 4.0, "original_max_position_embeddings": 256, "rope_theta": 1000.0}
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0},
    "llama3": {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL},
    "yarn": {"rope_type": "yarn", "beta_fast": 8.0, **ORIGINAL},
}
ROTATING = sorted({*CONFIGS} - {"jamba"})
TWO_ROPES = ("gemma3_text", "gemma3n_text")
MORE_KEYS = {"granitemoehybrid": {"position_embedding_type": "rope"}}


@pytest.mark.parametrize("kind", ROPES)
@pytest.mark.parametrize("model_type", ROTATING)
def test_every_type_of_rope_gives_the_logits_of_transformers(model_type: str, kind: str) -> None:
    dicts = dict(ROPES[kind])
    if model_type in TWO_ROPES:
        dicts = {"full_attention": dicts, "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}
    oracle = tiny(model_type, rope_parameters=dicts, **MORE_KEYS.get(model_type, {}))
    found = PagedDriver(model_from_hf(oracle)).step({"a": PROMPT})["a"]
    expected = full_logits(oracle, PROMPT)
    assert (found - expected).abs().max() < TOLERANCE
    plain = PagedDriver(model_from_hf(_without_scaling(oracle))).step({"a": PROMPT})["a"]
    assert (plain - expected).abs().max() > 100 * TOLERANCE, "a scaling that changes nothing tests nothing"


def _without_scaling(oracle: Any) -> Any:
    """The same weights under a config whose ropes are of the default type."""
    parameters = oracle.config.rope_parameters
    for each in [parameters[key] for key in parameters if isinstance(parameters[key], dict)] or [parameters]:
        theta = each["rope_theta"]
        each.clear()
        each.update(rope_type="default", rope_theta=theta)
    return oracle


# ---- which keys count, of the many that configs have had

LINEAR = {"rope_type": "linear", "factor": 8.0}
BOTH = ("full_attention", "sliding_attention")
OLDER = {"rope_theta": 700.0, "rope_local_base_freq": 60.0}
SPELLINGS: dict[str, dict[str, Any]] = {
    "no key": {},
    "the older base alone": {"rope_theta": 700.0},
    "the older keys": {"rope_scaling": LINEAR, **OLDER},
    "the older dict with a base": {"rope_scaling": {**LINEAR, "rope_theta": 5.0}, "rope_theta": 700.0},
    "the older name of the type": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "one dict without a base": {"rope_parameters": {"rope_type": "default"}},
    "one dict without a base beside the older base": {"rope_parameters": {"rope_type": "default"}, **OLDER},
    "one dict with scaling": {"rope_parameters": {**LINEAR, "rope_theta": 500.0}},
    "one dict with scaling beside the older base": {"rope_parameters": LINEAR, **OLDER},
    "null": {"rope_parameters": None, "rope_scaling": None, "rope_theta": 700.0},
}
BY_KIND: dict[str, dict[str, Any]] = {
    "a dict for full layers alone": {"rope_parameters": {"full_attention": LINEAR}, **OLDER},
    "two dicts without bases": {"rope_parameters": {kind: {"rope_type": "default"} for kind in BOTH}, **OLDER},
    "null for window layers": {"rope_parameters": {"full_attention": LINEAR, "sliding_attention": None}},
    "two dicts beside the older one": {
        "rope_parameters": {kind: {"rope_type": "default"} for kind in BOTH},
        "rope_scaling": LINEAR,
    },
}


def read_by_transformers(model_type: str, config: dict[str, Any]) -> list[tuple[float, float]]:
    """Base and factor of every layer that rotates."""
    theirs = getattr(transformers, CLASSES[model_type][0])(**json.loads(json.dumps(config)))
    parameters, kinds = theirs.rope_parameters, theirs.layer_types
    if model_type not in TWO_ROPES:
        kinds = ["one for all"]
        parameters = {"one for all": parameters}
    dicts = [parameters[kind] for kind in kinds]
    return [(each["rope_theta"], each["factor"] if each["rope_type"] != "default" else 1.0) for each in dicts]


def read_by_us(model_type: str, config: dict[str, Any]) -> list[tuple[float, float]]:
    with torch.device("meta"):
        model = family_of(config).from_config(config)
    assert isinstance(model, Decoder)
    ropes = [getattr(rope, "turned", rope) for rope in model.ropes if rope is not None]
    found = [(rope.base, rope.factor) for rope in ropes if isinstance(rope, Rope)]
    return found if model_type in TWO_ROPES else list(dict.fromkeys(found))


@pytest.mark.parametrize(
    ("model_type", "spelling"),
    [(model_type, spelling) for model_type in ROTATING for spelling in SPELLINGS]
    + [(model_type, spelling) for model_type in TWO_ROPES for spelling in BY_KIND],
)
def test_every_spelling_of_the_keys_means_what_it_means_to_transformers(model_type: str, spelling: str) -> None:
    shape = {key: value for key, value in CONFIGS[model_type].items() if key != "rope_parameters"}
    config = {
        **shape,
        "model_type": model_type,
        **MORE_KEYS.get(model_type, {}),
        **{**SPELLINGS, **BY_KIND}[spelling],
    }
    assert read_by_us(model_type, config) == read_by_transformers(model_type, config)


def test_dicts_for_kinds_of_layers_are_refused_where_all_layers_have_one_rope() -> None:
    parameters = {kind: {"rope_type": "default"} for kind in BOTH}
    config = {**CONFIGS["gemma2"], "model_type": "gemma2", "rope_parameters": parameters}
    with pytest.raises(ValueError, match=r"rope_parameters\.full_attention: .*one rope for all layers"):
        family_of(config).from_config(config)
