"""What a model is seen to keep on the meta device equals what the real model keeps, byte for byte."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from kvhybrid.planning import PlanningError
from kvhybrid.planning.observed import ObservedLayer, kept_layers, observe
from kvhybrid.planning.rules import CacheOptions, layer_specs
from kvhybrid.specs import KVCacheSpec
from kvhybrid.specs.dtypes import dtype_bytes
from tests.kvhybrid.planning.tiny_models import HYBRIDS, REFUSED, tiny_config, tiny_model, wrapper_of

NUM_TOKENS = 13
"""Twice the window of the small models, and one more."""

SHORT = (
    "bamba",
    "falcon_h1",
    "flint",
    "gemma3n_text",
    "gemma4_unified_text",
    "hy_v4",
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

pytestmark = pytest.mark.usefixtures("one_thread")

ALL = [pytest.param(name, marks=() if name in SHORT else pytest.mark.long) for name in HYBRIDS]


def real_bytes(layers: tuple[ObservedLayer, ...]) -> int:
    return sum(prod(tensor.shape) * dtype_bytes(tensor.dtype) for layer in layers for tensor in layer.tensors)


def planned_bytes(spec: KVCacheSpec, num_tokens: int) -> int:
    """The bytes that ``spec`` keeps for the token after ``num_tokens``."""
    if spec.state:
        return spec.page_bytes
    return sum(map(len, spec.live(num_tokens))) * spec.page_bytes // spec.block_size


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model_type", ALL)
def test_a_plan_counts_the_bytes_that_the_real_model_stores(model_type: str, dtype: str) -> None:
    config = tiny_config(model_type, HYBRIDS[model_type])
    specs = layer_specs(observe(config.to_dict(), dtype), CacheOptions(all_stored=True))
    assert len(set(specs.values())) > 1
    model = tiny_model(config, getattr(torch, dtype))
    for num_tokens in (5, NUM_TOKENS):
        kept = kept_layers(model, torch.arange(3, 3 + num_tokens)[None])
        if num_tokens < 6 or not any(spec.kind == "chunked_local" for spec in specs.values()):
            assert sum(planned_bytes(spec, num_tokens) for spec in specs.values()) == real_bytes(kept)
        else:  # transformers keeps a window of the chunk's size, of which the mask hides the chunk before
            assert sum(planned_bytes(spec, num_tokens) for spec in specs.values()) < real_bytes(kept)


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
