"""Whisper: a decoder of text that reads an encoder of sound, learned positions, biases on all but the keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kvhybrid.models.backends.cross import CrossBackend, CrossNeed
from kvhybrid.models.backends.torch_cross import TorchCross
from kvhybrid.models.loading import load_model, model_from_config, model_from_hf
from kvhybrid.specs import CrossAttentionSpec, FullAttentionSpec
from tests.models.encoder_driver import EncoderDriver
from tests.models.every_way_encoder import differences
from tests.models.tiny_encoder_decoders import WHISPER, decoder_prompt, features, full_logits, tiny_whisper

TOLERANCE = 1e-4
"""Largest difference of a logit, in float32. Measured maxima: whole prompt 9.8e-6, token by token 8.6e-6, random
chunks 9.3e-6, ragged batch of eight 1.0e-5, decoded together 9.8e-6."""

VARIANTS: dict[str, dict[str, Any]] = {
    "as released, but small": {},
    "untied, another activation": {"tie_word_embeddings": False, "activation_function": "relu"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_however_the_prompts_are_cut_and_batched(variant: str) -> None:
    oracle = tiny_whisper(**VARIANTS[variant])
    found = differences(model_from_hf(oracle), oracle, features)
    assert max(found.values()) < TOLERANCE, found


def test_a_checkpoint_folder_gives_the_same_model(tmp_path: Path) -> None:
    oracle = tiny_whisper()
    oracle.save_pretrained(tmp_path, safe_serialization=True)
    driver = EncoderDriver(load_model(tmp_path))
    driver.encode({"a": features(0)})
    found = driver.step({"a": decoder_prompt(9, seed=0)})["a"]
    assert (found - full_logits(oracle, features(0), decoder_prompt(9, seed=0))).abs().max() < TOLERANCE


def test_half_precision_follows_transformers_and_stays_finite() -> None:
    oracle = tiny_whisper()
    driver = EncoderDriver(model_from_hf(oracle, torch.float16), dtype=torch.float16)
    driver.encode({"a": features(0)})
    found = driver.step({"a": decoder_prompt(9, seed=0)})["a"]
    expected = full_logits(oracle, features(0), decoder_prompt(9, seed=0))
    assert (found - expected).abs().max() < 0.1  # measured: 0.033, of logits up to 5.6


def test_each_layer_keeps_its_own_and_the_encoder_s_tokens() -> None:
    specs = model_from_hf(tiny_whisper(decoder_layers=1)).layer_specs(16, torch.float32)
    page = {"block_size": 16, "num_kv_heads": 4, "head_size": 12, "dtype": "float32"}
    assert specs == {
        "layers.0.self_attn": FullAttentionSpec(**page),
        "layers.0.encoder_attn": CrossAttentionSpec(**page),
    }


def test_weights_without_a_checkpoint_come_from_the_seed() -> None:
    config = {**WHISPER, "model_type": "whisper"}
    first, again, other = (model_from_config(config, seed=seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(weight, again[name]) for name, weight in first.items())
    assert not torch.equal(first["encoder.conv1.weight"], other["encoder.conv1.weight"])


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([1, 2, 3], "found list"),
        (torch.ones(10, 46, dtype=torch.int64), "found a tensor of torch.int64"),
        (torch.ones(46, 10), r"found \[46, 10\]"),
        (torch.ones(1, 10, 46), r"found \[1, 10, 46\]"),
        (torch.ones(10, 48), r"found \[10, 48\]"),
    ],
)
def test_an_encoder_input_of_another_shape_is_refused(found: Any, said: str) -> None:
    model = model_from_hf(tiny_whisper())
    accepted = r"a float tensor of log-mel features \[mel bins, frames\] = \[10, 46\]"
    with pytest.raises(ValueError, match=f"encoder_input must be {accepted}, {said}"):
        model.read_encoder_input(found)


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match="d_model = 48 must be a multiple of decoder_attention_heads = 5"):
        model_from_config({**WHISPER, "model_type": "whisper", "decoder_attention_heads": 5})


def test_a_cross_backend_without_soft_caps_refuses_a_layer_that_needs_one() -> None:
    class Plain(TorchCross):
        name = "plain"
        soft_caps = False

    need = CrossNeed("layers.0.cross_attn", num_heads=2, num_kv_heads=1, head_size=4, scale=1.0, soft_cap=5.0)
    assert isinstance(TorchCross(need), CrossBackend)
    with pytest.raises(ValueError, match=r"layer layers.0.cross_attn needs a soft-cap, which .* plain cannot do"):
        Plain(need)
