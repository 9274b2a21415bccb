"""Gemma 3n: layers that read another's cache, AltUp, LAuReL, per-layer embeddings, sparse gates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvhybrid.models.backends.base import AttentionNeed
from kvhybrid.models.backends.torch_attention import TorchAttention
from kvhybrid.models.backends.visibility import Visibility
from kvhybrid.models.layers.shared_attention import SharedAttention
from kvhybrid.models.loading import load_model, model_from_config, model_from_hf
from tests.models.every_way import differences, engine_tokens
from tests.models.paged_driver import PagedDriver, run_greedily
from tests.models.tiny_models import CONFIGS, full_logits, generated, random_prompt, tiny

TOLERANCE = 1e-4
"""Largest difference of a logit, in float32. Measured maxima: whole prompt 2.3e-5, token by token 5.2e-5, random
chunks 2.8e-5, ragged batch of eight 4.0e-5. Transformers' own two attention kernels differ by up to 4.4e-5 on
models like these, and are as far from float64 (4.8e-5) as ours (3.8e-5)."""

TINY = {**CONFIGS["gemma3n_text"], "model_type": "gemma3n_text"}
VARIANTS: dict[str, dict[str, Any]] = {
    "as released": {},
    "nothing shared": {"num_kv_shared_layers": 0},
    "all but the first two shared": {"num_kv_shared_layers": 5},
    "two streams, the second active, output not scaled, one inner width": {
        "altup_num_inputs": 2,
        "altup_active_idx": 1,
        "altup_correct_scale": False,
        "intermediate_size": 40,
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_however_the_prompts_are_cut_and_batched(variant: str) -> None:
    oracle = tiny("gemma3n_text", **VARIANTS[variant])
    found = differences(model_from_hf(oracle), oracle)
    assert max(found.values()) < TOLERANCE, found


def test_greedy_tokens_equal_those_of_generate_also_with_cache_hits_and_preemption() -> None:
    oracle = tiny("gemma3n_text")
    prompts = {f"s{n}": random_prompt(n, seed=n) for n in (1, 3, 7, 8, 9, 13, 20, 31)}
    expected = {name: generated(oracle, prompt, 10) for name, prompt in prompts.items()}
    assert len({token for tokens in expected.values() for token in tokens}) > 16
    assert run_greedily(PagedDriver(model_from_hf(oracle)), prompts, 10) == expected
    assert engine_tokens(oracle, list(prompts.values()), 10) == list(expected.values())


def test_bfloat16_is_as_near_to_float32_as_that_of_transformers() -> None:
    oracle = tiny("gemma3n_text")
    prompt = random_prompt(30, seed=0)
    exact = full_logits(oracle, prompt)
    rounded = oracle.to(torch.bfloat16)
    found = PagedDriver(model_from_hf(rounded), dtype=torch.bfloat16).step({"a": prompt})["a"]
    ours, theirs = ((logits.float() - exact).std() for logits in (found, full_logits(rounded, prompt)))
    assert ours < 1.25 * theirs  # measured: 1.03; over four seeds 0.88 to 1.03
    assert theirs < 0.1 * exact.std()


@pytest.mark.parametrize(
    "change",
    [
        {"num_kv_shared_layers": 1},
        {"sliding_window": 512},
        {"activation_sparsity_pattern": [0.0] * 7},
        {"altup_active_idx": 1},
        {"altup_correct_scale": False},
        {"final_logit_softcapping": 100.0},
        {"vocab_size_per_layer_input": 40},
        {"rope_parameters": {**TINY["rope_parameters"], "sliding_attention": {"rope_theta": 50_000.0}}},
    ],
    ids=str,
)
def test_each_feature_moves_the_logits(change: dict[str, Any]) -> None:
    """Without this the comparisons above would not notice that one is missing."""
    prompt = random_prompt(60, seed=1)
    with_it, without = (full_logits(tiny("gemma3n_text", **changed), prompt) for changed in ({}, change))
    assert (with_it - without).abs().max() > 1000 * TOLERANCE


@pytest.mark.parametrize(("shared", "kinds"), [(0, "sfsfssf"), (1, "sfsfss"), (3, "sfsf"), (5, "sf")])
def test_only_layers_with_a_cache_of_their_own_have_a_spec(shared: int, kinds: str) -> None:
    model = model_from_config({**TINY, "num_kv_shared_layers": shared})
    specs = model.layer_specs(16, torch.bfloat16)
    assert "".join(spec.kind[0] for spec in specs.values()) == kinds
    assert list(specs) == [f"layers.{index}.self_attn" for index in range(7 - shared)]


def test_layer_without_a_cache_reads_the_pages_of_the_last_one_of_its_kind() -> None:
    model = model_from_config(TINY)
    PagedDriver(model)
    own = {name: layer.cache for name, layer in model.named_modules() if hasattr(layer, "cache")}
    for shared, source in ((4, 2), (5, 2), (6, 3)):
        layer = model.get_submodule(f"layers.{shared}.self_attn")
        assert isinstance(layer, SharedAttention)
        assert layer.source == f"layers.{source}.self_attn"
        assert layer.cache is own[layer.source]


def test_logits_without_a_soft_cap_are_those_with_a_cap_beyond_reach() -> None:
    prompt = random_prompt(20, seed=1)
    without, beyond = (
        PagedDriver(model_from_config({**TINY, "final_logit_softcapping": cap})).step({"a": prompt})["a"]
        for cap in (None, 1e6)
    )
    assert torch.allclose(without, beyond, rtol=1e-5, atol=1e-6)


def test_backend_that_cannot_share_is_refused_with_both_names() -> None:
    class Plain(TorchAttention):
        name: ClassVar[str] = "plain"
        shared_caches: ClassVar[bool] = False

    need = AttentionNeed("layers.4", 4, 2, 16, 1.0, Visibility(), shared_cache=True)
    with pytest.raises(ValueError, match=r"layers\.4 needs to read another layer's cache, .* plain cannot do"):
        Plain(need)


def test_the_released_checkpoint_has_other_senses_and_keys_that_no_layer_reads(tmp_path: Path) -> None:
    """The layout of E2B and E4B: a text_config, the text model below `model.language_model`."""
    oracle = tiny("gemma3n_text")
    oracle.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    outer = {"model_type": "gemma3n", "text_config": config, "vision_config": {}, "audio_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    weights = load_file(tmp_path / "model.safetensors")
    released = {name.replace("model.", "model.language_model.", 1): weight for name, weight in weights.items()}
    for part in ("k_proj", "v_proj", "k_norm"):
        source = released[f"model.language_model.layers.3.self_attn.{part}.weight"]
        released[f"model.language_model.layers.6.self_attn.{part}.weight"] = source.clone()
    for sense in ("vision_tower", "audio_tower", "embed_vision", "embed_audio"):
        released[f"model.{sense}.some.weight"] = torch.zeros(2)
    save_file(released, tmp_path / "model.safetensors")
    prompt = random_prompt(40, seed=3)
    found = PagedDriver(load_model(tmp_path)).step({"a": prompt})["a"]
    assert (found - full_logits(oracle, prompt)).abs().max() < TOLERANCE  # measured: 1.9e-5


def test_config_with_the_older_rope_keys(tmp_path: Path) -> None:
    oracle = tiny(
        "gemma3n_text",
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 50_000.0},
        },
    )
    oracle.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["rope_parameters"]
    config |= {
        "rope_theta": 50_000.0,
        "rope_local_base_freq": 1000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    }
    path.write_text(json.dumps(config))
    prompt = random_prompt(40, seed=3)
    found = PagedDriver(load_model(tmp_path)).step({"a": prompt})["a"]
    assert (found - full_logits(oracle, prompt)).abs().max() < TOLERANCE  # measured: 1.9e-5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_kv_shared_layers": 6}, "found 6, which leaves no full_attention"),
        ({"num_kv_shared_layers": 9}, "leaves no full_attention and no sliding_attention"),
        ({"layer_types": ["full_attention"]}, "layer_types must list 'sliding_attention' or"),
        (
            {"intermediate_size": [40, 40]},
            "intermediate_size must be one value, or one for each of 7 layers, found 2",
        ),
        ({"activation_sparsity_pattern": [0.5]}, "activation_sparsity_pattern must be one value"),
        ({"activation_sparsity_pattern": 1.5}, r"shares in \[0, 1\), found 1.5"),
        ({"rope_parameters": {"full_attention": {"rope_type": "dynamic"}}}, "'dynamic' is not supported"),
    ],
)
def test_config_that_the_family_cannot_follow_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model_from_config({**TINY, **changes})
