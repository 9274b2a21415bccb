"""T5Gemma: windows and full layers that also read an encoder, soft-caps, stacks of two sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kvhybrid.models.loading import load_model, model_from_config, model_from_hf
from kvhybrid.specs import CrossAttentionSpec, FullAttentionSpec, SlidingWindowSpec
from tests.models.encoder_driver import EncoderDriver
from tests.models.every_way_encoder import differences
from tests.models.tiny_encoder_decoders import (
    STACK,
    VOCAB,
    decoder_prompt,
    encoder_tokens,
    full_logits,
    tiny_t5gemma,
)

TOLERANCE = 1e-4
"""Largest difference of a logit, in float32. Measured maxima: whole prompt 4.1e-6, token by token 5.1e-6, random
chunks 5.0e-6, ragged batch of eight 6.6e-6, decoded together 4.1e-6, longer than a tile 2.9e-6."""

ENCODER_LENS = (3, 40, 9, 1, 17, 90, 33, 64)
VARIANTS: dict[str, dict[str, Any]] = {
    "as released, but small": {},
    "untied, biases, no soft-caps": {
        "tie_word_embeddings": False,
        "num_hidden_layers": 2,
        "attention_bias": True,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
    "a large encoder, a small decoder of another pattern": {
        "encoder": {"hidden_size": 64, "num_hidden_layers": 2, "num_key_value_heads": 4, "sliding_window": 3},
        "decoder": {
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
        },
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_however_the_prompts_are_cut_and_batched(variant: str) -> None:
    oracle = tiny_t5gemma(**VARIANTS[variant])
    found = differences(model_from_hf(oracle), oracle, lambda i: encoder_tokens(ENCODER_LENS[i], i))
    assert max(found.values()) < TOLERANCE, found


def test_an_input_and_a_prompt_longer_than_a_tile() -> None:
    oracle = tiny_t5gemma(num_hidden_layers=2)
    given, prompt = encoder_tokens(700, seed=1), decoder_prompt(600, seed=2)
    driver = EncoderDriver(model_from_hf(oracle), block_size=16)
    driver.encode({"a": given})
    found = driver.step({"a": prompt})["a"]
    assert (found - full_logits(oracle, given, prompt)).abs().max() < TOLERANCE


def test_a_checkpoint_folder_gives_the_same_model(tmp_path: Path) -> None:
    oracle = tiny_t5gemma(num_hidden_layers=2)
    oracle.save_pretrained(tmp_path, safe_serialization=True)
    driver = EncoderDriver(load_model(tmp_path))
    driver.encode({"a": encoder_tokens(12, seed=0)})
    found = driver.step({"a": decoder_prompt(9, seed=0)})["a"]
    expected = full_logits(oracle, encoder_tokens(12, seed=0), decoder_prompt(9, seed=0))
    assert (found - expected).abs().max() < TOLERANCE


def test_each_layer_keeps_its_own_and_the_encoder_s_tokens() -> None:
    specs = model_from_hf(tiny_t5gemma(num_hidden_layers=2)).layer_specs(16, torch.bfloat16)
    page = {"block_size": 16, "num_kv_heads": 2, "head_size": 16, "dtype": "bfloat16"}
    assert specs == {
        "layers.0.self_attn": SlidingWindowSpec(**page, window=8),
        "layers.0.cross_attn": CrossAttentionSpec(**page),
        "layers.1.self_attn": FullAttentionSpec(**page),
        "layers.1.cross_attn": CrossAttentionSpec(**page),
    }


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([], "found an empty list"),
        ("text", "found str"),
        (torch.ones(3), "found Tensor"),
        ([1, VOCAB], f"found 1 to {VOCAB}"),
        ([-1, 2], "found -1 to 2"),
        ([[1, 2]], r"found \[1, 2\] among them"),
    ],
)
def test_an_encoder_input_that_is_no_list_of_tokens_is_refused(found: Any, said: str) -> None:
    model = model_from_hf(tiny_t5gemma(num_hidden_layers=1, layer_types=["full_attention"]))
    with pytest.raises(ValueError, match=rf"encoder_input must be a list of token ids in \[0, {VOCAB}\), {said}"):
        model.read_encoder_input(found)


def test_an_unknown_kind_of_layer_is_refused() -> None:
    stack = {**STACK, "layer_types": ["chunked_attention"] * 4}
    with pytest.raises(ValueError, match="layer_types must list 'sliding_attention' or 'full_attention'"):
        model_from_config({"model_type": "t5gemma", "encoder": STACK, "decoder": stack})
