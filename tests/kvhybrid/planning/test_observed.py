"""What is planned for a model seen on the meta device equals what the real model stores, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from kvhybrid.planning import PlanningError
from kvhybrid.planning.observed import observe
from kvhybrid.planning.rules import CacheOptions, layer_specs
from runs.models.stored import lengths_of, planned_bytes, stored_bytes
from tests.kvhybrid.planning.tiny_models import HYBRIDS, REFUSED, tiny_config, tiny_model, wrapper_of

SHORT = (
    "bamba",
    "falcon_h1",
    "flint",
    "gemma3n_text",
    "gemma4_unified_text",
    "jamba",
    "kimi_linear",
    "lfm2",
    "llama4_text",
    "mimo_v2_flash",
    "minimax",
    "minimax_m3_vl_text",
    "modernbert-decoder",
    "qwen3_next",
    "recurrent_gemma",
    "zamba2",
)
"""At least one of each way of keeping something; the others are tested with ``-m long``."""
SHORT_IN_BFLOAT16 = ("jamba", "recurrent_gemma")

pytestmark = pytest.mark.usefixtures("one_thread")

ALL = [
    pytest.param(name, dtype, marks=() if name in quick else pytest.mark.long)
    for dtype, quick in (("float32", SHORT), ("bfloat16", SHORT_IN_BFLOAT16))
    for name in HYBRIDS
]


@pytest.mark.parametrize(("model_type", "dtype"), ALL)
def test_every_layer_is_planned_with_the_bytes_that_the_real_model_stores(model_type: str, dtype: str) -> None:
    """After `generate`, in every tensor that can be reached from its cache and its modules, layer by layer."""
    config = tiny_config(model_type, HYBRIDS[model_type])
    seen = observe(config.to_dict(), dtype)
    specs = layer_specs(seen, CacheOptions(all_stored=True))
    assert len(set(specs.values())) > 1
    model = tiny_model(config, getattr(torch, dtype))
    for num_tokens in lengths_of(specs):
        stored = stored_bytes(model, token_ids(num_tokens))
        assert planned_bytes(seen, num_tokens) == stored, f"after {num_tokens} tokens"


def test_tensors_are_found_wherever_a_model_keeps_them() -> None:
    """Keys and values in a cache's layers, states beside them, states in modules: 4 tokens of 32-bit numbers."""
    kept = {name: tiny_model(tiny_config(name, HYBRIDS[name])) for name in ("minimax", "recurrent_gemma")}
    minimax, gemma = (stored_bytes(model, token_ids(4)) for model in kept.values())
    assert minimax == {i: 4 * (4 * 16 * 16 if i % 2 else 2 * 4 * 2 * 16) for i in range(8)}
    config = kept["recurrent_gemma"].config
    assert gemma[0] == 4 * (config.lru_width + config.lru_width * (config.conv1d_width - 1))
    assert sorted(gemma) == list(range(8))


def test_a_chunk_is_planned_with_what_its_mask_lets_a_token_read() -> None:
    """transformers stores the last 5 tokens of a chunk of 6, some of them of the chunk before."""
    config = tiny_config("llama4_text", HYBRIDS["llama4_text"])
    seen = observe(config.to_dict(), "float32")
    token = 4 * 2 * 2 * 16
    for num_tokens, live in ((5, 5), (6, 0), (8, 2), (11, 5), (12, 0)):
        assert planned_bytes(seen, num_tokens).get(0, 0) == live * token
        assert stored_bytes(tiny_model(config), token_ids(num_tokens))[0] == 5 * token


def token_ids(num_tokens: int) -> torch.Tensor:
    return torch.arange(num_tokens)[None] % 60 + 3


@pytest.mark.parametrize("model_type", REFUSED)
def test_what_no_spec_describes_is_refused_with_the_reason(model_type: str) -> None:
    extra, reason = REFUSED[model_type]
    config = tiny_config(model_type, extra).to_dict()
    with pytest.raises(PlanningError, match=rf"^model_type '{model_type}': .*{reason}"):
        layer_specs(observe(config), CacheOptions())


@pytest.mark.parametrize("model_type", ["gemma3_text", "gemma4_unified_text", "llama4_text", "qwen3_5_text"])
def test_of_a_model_that_also_sees_the_decoder_is_planned(model_type: str) -> None:
    config = tiny_config(model_type, HYBRIDS[model_type])
    assert observe(wrapper_of(config)).layers == observe(config.to_dict()).layers


def test_the_dtype_of_the_weights_is_that_of_the_config_and_states_keep_their_own() -> None:
    config = tiny_config("jamba", {}).to_dict()
    kept = {dtype: observe({**config, "dtype": dtype}) for dtype in ("float32", "float16")}
    for dtype, seen in kept.items():
        assert seen.dtype == dtype
        assert {tensor.dtype for layer in seen.layers for tensor in layer.tensors} == {dtype, "float32"}


def test_a_padding_token_does_not_stop_a_model_that_would_warn_about_it() -> None:
    config = tiny_config("gpt2", {}).to_dict()
    assert observe({**config, "pad_token_id": 0}).layers == observe({**config, "pad_token_id": None}).layers


def test_a_compressed_checkpoint_keeps_the_same() -> None:
    config = tiny_config("gpt_oss", {}).to_dict()
    assert observe({**config, "quantization_config": {"quant_method": "mxfp4"}}).layers == observe(config).layers


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, "model_type must be a string, found None"),
        ({"model_type": "jambo"}, "'jambo': unknown to transformers .*; did you mean 'jamba'"),
        ({"model_type": "whisper"}, "an encoder-decoder; accepted: decoder-only"),
        ({"model_type": "bert"}, "keeps no cache"),
        ({"model_type": "vit"}, "no causal language model"),
        ({"model_type": "bamba"}, "cannot run this config without weights: ValueError: .*LinearAttention"),
        ({"model_type": "llama", "num_attention_heads": "many"}, "cannot run this config .*num_attention_heads"),
    ],
)
def test_a_config_that_cannot_be_planned_is_refused_in_one_line(config: dict[str, Any], expected: str) -> None:
    with pytest.raises(PlanningError, match=expected) as caught:
        observe(config)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.long
def test_every_type_with_several_kinds_is_among_those_tested() -> None:
    """By default configs. A type that also sees is planned by its decoder, which is another type."""
    several, refused = set(), set()
    for model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        try:
            seen = observe(CONFIG_MAPPING[model_type]().to_dict())
            kinds = {type(spec) for spec in layer_specs(seen, CacheOptions()).values()}
        except PlanningError:
            refused.add(model_type)
        except Exception:  # a default that transformers itself does not accept
            refused.add(model_type)
        else:
            several |= {seen.model_type} if len(kinds) > 1 else set()
    assert several - set(HYBRIDS) == set()
    assert len(several) >= 40
    assert len(refused) < 60
