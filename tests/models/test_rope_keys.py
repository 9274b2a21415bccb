"""The keys of a rope: every family that rotates reads them as transformers does."""

from __future__ import annotations

from typing import Any

import pytest
from paged_driver import PagedDriver
from tiny_models import CONFIGS, full_logits, random_prompt, tiny

from kvhybrid.models.loading import model_from_hf

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
