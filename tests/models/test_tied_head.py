"""The output head: which weights it has is told by the checkpoint and, where that does not tell, by the config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvhybrid.models.base import HybridModel
from kvhybrid.models.families import family_of
from kvhybrid.models.loading import load_model, model_from_hf
from tests.models.encoder_driver import EncoderDriver
from tests.models.paged_driver import PagedDriver
from tests.models.tiny_encoder_decoders import decoder_prompt, encoder_tokens, features, tiny_t5gemma, tiny_whisper
from tests.models.tiny_encoder_decoders import full_logits as encoder_decoder_logits
from tests.models.tiny_models import CONFIGS, full_logits, random_prompt, tiny

TOLERANCE = 1e-4
FAMILIES = [*sorted(CONFIGS), "t5gemma", "whisper"]


def oracle_of(model_type: str, tied: bool) -> PreTrainedModel:
    if model_type == "t5gemma":
        return tiny_t5gemma(tie_word_embeddings=tied)
    if model_type == "whisper":
        return tiny_whisper(tie_word_embeddings=tied)
    return tiny(model_type, tie_word_embeddings=tied)


def both_logits(model: HybridModel, oracle: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """Ours and transformers', of one prompt."""
    if not model.max_encoder_tokens:
        prompt = random_prompt(20, seed=0)
        return PagedDriver(model).step({"a": prompt})["a"], full_logits(oracle, prompt)
    given = features(0) if oracle.config.model_type == "whisper" else encoder_tokens(9, seed=0)
    prompt = decoder_prompt(9, seed=0)
    driver = EncoderDriver(model)
    driver.encode({"a": given})
    return driver.step({"a": prompt})["a"], encoder_decoder_logits(oracle, given, prompt)


def assert_same_logits(model: HybridModel, oracle: PreTrainedModel) -> None:
    found, expected = both_logits(model, oracle)
    assert (found - expected).abs().max() < TOLERANCE


def call_it_tied(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tie_word_embeddings": True}))


def name_of(weights: dict[str, Tensor], *ends: str) -> str:
    (name,) = (name for name in weights if name.endswith(ends) and "encoder." not in name)
    return name


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_stored_head_that_differs_from_the_embedding_is_kept_although_the_config_ties_them(
    model_type: str, tmp_path: Path
) -> None:
    oracle_of(model_type, tied=False).save_pretrained(tmp_path)
    call_it_tied(tmp_path)
    oracle = oracle_of(model_type, tied=False)
    oracle = type(oracle).from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert_same_logits(load_model(tmp_path), oracle)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_live_model_whose_head_was_replaced_keeps_it(model_type: str) -> None:
    oracle = oracle_of(model_type, tied=True)
    tied = model_from_hf(oracle)
    before, _ = both_logits(tied, oracle)
    head = oracle.get_output_embeddings()
    head.weight = nn.Parameter(head.weight.detach().flip(0).clone())
    untied = model_from_hf(oracle)
    assert_same_logits(untied, oracle)
    assert (both_logits(untied, oracle)[0] - before).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.parametrize("stored", ["both", "the head alone"])
def test_a_stored_head_that_equals_the_embedding_is_the_embedding(
    model_type: str, stored: str, tmp_path: Path
) -> None:
    oracle = oracle_of(model_type, tied=True)
    oracle.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    embedding = name_of(weights, "embed_tokens.weight", "embed_tokens.embedding.weight")
    heads = {"whisper": "proj_out.weight", "t5gemma": "lm_head.out_proj.weight"}
    weights[heads.get(model_type, "lm_head.weight")] = weights[embedding].clone()
    if stored == "the head alone":
        del weights[embedding]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    model = load_model(tmp_path)
    assert "lm_head.weight" not in model.state_dict()
    assert_same_logits(model, oracle)


def test_a_head_of_another_shape_is_refused_like_every_weight(tmp_path: Path) -> None:
    oracle_of("gemma2", tied=True).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file({**weights, "lm_head.weight": torch.zeros(7, 48)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"1 misshapen: lm_head\.weight \(7, 48\) instead of \(131, 48\)"):
        load_model(tmp_path)


WRAPPERS = {
    "gemma3": transformers.Gemma3Config,
    "gemma3n": transformers.Gemma3nConfig,
    "llama4": transformers.Llama4Config,
}
TEXT = {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2, "num_kv_shared_layers": 0}


@pytest.mark.parametrize("model_type", WRAPPERS)
@pytest.mark.parametrize("inside", [{}, {"tie_word_embeddings": True}, {"tie_word_embeddings": False}])
@pytest.mark.parametrize("outside", [{}, {"tie_word_embeddings": True}, {"tie_word_embeddings": False}])
def test_of_a_multimodal_config_the_top_says_what_is_tied(
    model_type: str, inside: dict[str, Any], outside: dict[str, Any]
) -> None:
    config = {"model_type": model_type, "text_config": {**TEXT, **inside}, **outside}
    with torch.device("meta"):
        model = family_of(config).from_config(config)
    oracle = WRAPPERS[model_type](**json.loads(json.dumps(config)))
    assert ("lm_head.weight" not in model.state_dict()) == oracle.tie_word_embeddings
