"""The trained weights that come with the package: small, and the same model as transformers reads from them."""

from __future__ import annotations

import json

import pytest
import torch
import transformers

from kvhybrid.engine.engine import Engine
from kvhybrid.models import weights
from kvhybrid.models.checkpoint import read_weights
from kvhybrid.models.loading import load_model
from kvhybrid.text.corpus import held_out_text
from tests.models.paged_driver import PagedDriver
from tests.models.tiny_models import full_logits

NAMES = ["gemma3_bytes", "jamba_bytes"]
PROMPT = list(held_out_text()[5000:5200])


def test_every_folder_has_a_name() -> None:
    assert weights.names() == NAMES
    with pytest.raises(ValueError, match=r"no weights called 'gpt' come with kvhybrid; accepted: gemma3_bytes, "):
        weights.folder_of("gpt")


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_is_small_and_has_nothing_but_config_and_weights(name: str) -> None:
    folder = weights.folder_of(name)
    sizes = {place.name: place.stat().st_size for place in folder.iterdir()}
    assert set(sizes) == {"config.json", "model.safetensors"}
    assert sum(sizes.values()) <= 5_000_000  # measured: 2.5 and 2.9 million
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 256
    assert 1e6 < sum(weight.numel() for weight in read_weights(folder).values()) < 1.5e6


@pytest.mark.parametrize("name", NAMES)
def test_transformers_reads_the_same_model(name: str) -> None:
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        weights.folder_of(name), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    found = PagedDriver(load_model(weights.folder_of(name))).step({"a": PROMPT})["a"]
    difference = float((found - full_logits(oracle, PROMPT)).abs().max())
    assert difference < 1e-4  # measured: gemma3_bytes 8.6e-6, jamba_bytes 1.6e-5


@pytest.mark.parametrize("name", NAMES)
def test_an_engine_goes_on_with_source(name: str) -> None:
    engine = Engine.from_hf(weights.folder_of(name), num_blocks=64, max_model_len=128)
    (output,) = engine.generate([list(b"import os\nimport sys\nimport r")], max_new_tokens=24)
    text = bytes(output).decode("ascii")
    assert text.strip()
    assert set(text) <= {chr(code) for code in range(32, 127)} | {"\n"}
