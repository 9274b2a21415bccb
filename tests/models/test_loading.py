"""Loading: checkpoint folders, live models, random weights, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from kvhybrid.models.checkpoint import CheckpointError
from kvhybrid.models.loading import load_model, model_from_config, model_from_hf
from tests.models.paged_driver import PagedDriver, run_greedily
from tests.models.tiny_models import CONFIGS, GEMMA, full_logits, random_prompt, randomised, tiny

PROMPT = random_prompt(30, seed=0)
TOLERANCE = 1e-4  # measured maximum: 4.7e-6


def edit_config(folder: Path, **changes: Any) -> None:
    """Set keys of config.json; a key set to None goes."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def assert_same_logits(model: Any, oracle: Any) -> None:
    found = PagedDriver(model).step({"a": PROMPT})["a"]
    difference = float((found - full_logits(oracle, PROMPT)).abs().max())
    assert difference < TOLERANCE


@pytest.mark.parametrize("model_type", sorted(CONFIGS))
def test_sharded_checkpoint(model_type: str, tmp_path: Path) -> None:
    oracle = tiny(model_type)
    oracle.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_same_logits(load_model(tmp_path), oracle)


@pytest.mark.parametrize("model_type", sorted(CONFIGS))
def test_live_model(model_type: str) -> None:
    oracle = tiny(model_type)
    assert_same_logits(model_from_hf(oracle), oracle)


@pytest.mark.parametrize("model_type", sorted(CONFIGS))
def test_output_weights_that_are_tied_or_not(model_type: str) -> None:
    tied = CONFIGS[model_type].get("tie_word_embeddings", model_type != "jamba")
    oracle = tiny(model_type, tie_word_embeddings=not tied)
    assert_same_logits(model_from_hf(oracle), oracle)


def test_live_model_shares_its_weights() -> None:
    oracle = tiny("gemma2")
    model = model_from_hf(oracle)
    assert model.get_parameter("embed_tokens.weight").data_ptr() == oracle.model.embed_tokens.weight.data_ptr()


def test_multimodal_gemma3_loads_its_text_part(tmp_path: Path) -> None:
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 8,
    }
    config = transformers.Gemma3Config(
        text_config=transformers.Gemma3TextConfig(**CONFIGS["gemma3_text"]),
        vision_config=transformers.SiglipVisionConfig(**vision),
        mm_tokens_per_image=4,
    )
    oracle = randomised(transformers.Gemma3ForConditionalGeneration(config))
    oracle.save_pretrained(tmp_path)
    assert_same_logits(load_model(tmp_path), oracle)
    assert_same_logits(model_from_hf(oracle), oracle)


def test_gemma3_config_from_before_rope_parameters_and_layer_types(tmp_path: Path) -> None:
    oracle = tiny(
        "gemma3_text",
        layer_types=["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 50_000.0},
        },
    )
    oracle.save_pretrained(tmp_path)
    edit_config(
        tmp_path,
        rope_parameters=None,
        layer_types=None,
        sliding_window_pattern=2,
        rope_theta=50_000.0,
        rope_local_base_freq=1000.0,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )
    assert_same_logits(load_model(tmp_path), oracle)


def test_gemma2_config_from_before_rope_parameters_and_layer_types(tmp_path: Path) -> None:
    oracle = tiny("gemma2", rope_parameters={"rope_type": "default", "rope_theta": 700.0})
    oracle.save_pretrained(tmp_path)
    edit_config(tmp_path, rope_parameters=None, layer_types=None, rope_theta=700.0)
    assert_same_logits(load_model(tmp_path), oracle)


def test_jamba_checkpoint_that_stores_experts_one_by_one(tmp_path: Path) -> None:
    oracle = tiny("jamba")
    oracle.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    assert any(".experts.3.gate_proj.weight" in name for name in weights)
    assert_same_logits(load_model(tmp_path), oracle)


# Gemma 3n makes more of a rounding, transformers' own two kernels differ by 0.047: see test_gemma3n.py.
@pytest.mark.parametrize("model_type", sorted({*CONFIGS} - {"gemma3n_text"}))
def test_bfloat16_follows_transformers(model_type: str, tmp_path: Path) -> None:
    oracle = tiny(model_type).to(torch.bfloat16)
    oracle.save_pretrained(tmp_path)
    model = load_model(tmp_path, torch.bfloat16)
    found = PagedDriver(model, dtype=torch.bfloat16).step({"a": PROMPT})["a"].float()
    expected = full_logits(oracle, PROMPT).float()
    assert (found - expected).std() < 0.04 * expected.std()  # measured maximum: 0.021


def test_oracles_depend_on_their_seed_alone() -> None:
    """Transformers draws gpt-oss's sinks and router biases. With others, a router near a tie flips in bfloat16."""
    oracles = []
    for state in (1, 2):
        torch.manual_seed(state)
        oracles.append(tiny("gpt_oss").state_dict())
    one, other = oracles
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def test_random_weights_depend_on_the_seed_alone_and_generate_varied_tokens() -> None:
    prompts = {f"s{n}": random_prompt(n, seed=n) for n in (4, 9, 30)}
    for model_type, config in CONFIGS.items():
        one, same, other = (
            run_greedily(PagedDriver(model_from_config({**config, "model_type": model_type}, seed)), prompts, 12)
            for seed in (1, 1, 2)
        )
        assert one == same
        assert one != other
        assert len({token for tokens in one.values() for token in tokens}) > 12


def test_specs_say_what_each_layer_keeps() -> None:
    gemma = model_from_config({**CONFIGS["gemma3_text"], "model_type": "gemma3_text"}, seed=0)
    specs = gemma.layer_specs(16, torch.bfloat16)
    kinds = ["sliding_window", "sliding_window", "full", "sliding_window", "full"]
    assert [spec.kind for spec in specs.values()] == kinds
    assert {spec.unpadded_page_bytes for spec in specs.values()} == {16 * 2 * 2 * 16 * 2}

    jamba = model_from_config({**CONFIGS["jamba"], "model_type": "jamba"}, seed=0)
    specs = jamba.layer_specs(8, torch.bfloat16)
    assert [spec.kind for spec in specs.values()] == ["mamba", "full", "mamba"] * 2
    parts = {part.name: (part.shape, part.dtype) for part in specs["layers.0.mamba"].page_parts()}
    assert parts == {"conv": ((96, 3), "bfloat16"), "ssm": ((96, 8), "float32")}


def test_unknown_family_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mystery"}')
    with pytest.raises(ValueError, match=r"'mystery'.*bamba, gemma2, gemma3, gemma3_text, .*jamba"):
        load_model(tmp_path)


def test_missing_and_unexpected_weights_are_listed(tmp_path: Path) -> None:
    tiny("gemma2").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    weights["model.layers.1.stray.weight"] = weights.pop("model.layers.1.mlp.up_proj.weight")
    weights["model.norm.weight"] = torch.zeros(3)
    save_file(weights, path)
    with pytest.raises(CheckpointError) as refusal:
        load_model(tmp_path)
    assert "1 missing: layers.1.mlp.up_proj.weight" in str(refusal.value)
    assert "1 unexpected: layers.1.stray.weight" in str(refusal.value)
    assert "1 misshapen: norm.weight (3,) instead of (48,)" in str(refusal.value)


def test_missing_expert_is_listed(tmp_path: Path) -> None:
    tiny("jamba").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    del weights["model.layers.1.feed_forward.experts.2.up_proj.weight"]
    save_file(weights, path)
    with pytest.raises(CheckpointError, match=r"missing: .*layers\.1\.feed_forward\.gate_up_proj"):
        load_model(tmp_path)


def test_a_single_file_is_taken_before_the_shards_of_an_older_checkpoint(tmp_path: Path) -> None:
    tiny("gemma2", seed=1).save_pretrained(tmp_path, max_shard_size="100KB")
    tiny("gemma2", seed=2).save_pretrained(tmp_path / "single")
    (tmp_path / "single" / "model.safetensors").rename(tmp_path / "model.safetensors")
    assert (tmp_path / "model.safetensors.index.json").exists()
    oracle = transformers.Gemma2ForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert_same_logits(load_model(tmp_path), oracle)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    tiny("gemma2").save_pretrained(tmp_path, max_shard_size="100KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=shard.name):
        load_model(tmp_path)


def test_index_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIGS["gemma2"], "model_type": "gemma2"}))
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../other.safetensors"}}')
    with pytest.raises(CheckpointError, match="not a file name in this folder"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"config\.json: missing"),
        ({"config.json": "{"}, r"config\.json: line 1: not JSON"),
        ({"config.json": "[]"}, "expected an object, found list"),
        ({"config.json": '{"model_type": "jamba"}', "pytorch_model.bin": ""}, "only safetensors are accepted"),
        ({"config.json": '{"model_type": "jamba"}', "model.safetensors": "x"}, "not a safetensors file"),
    ],
)
def test_broken_folder_is_refused(files: dict[str, str], message: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointError, match=message):
        load_model(tmp_path)


def test_config_that_is_refused_is_refused_before_any_weights_are_read(tmp_path: Path) -> None:
    config = {**CONFIGS["gpt_oss"], "model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_text("to read this would fail")
    with pytest.raises(ValueError, match="'mxfp4' is not supported; only float weights are accepted"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "'yarn' needs factor, original_max"),
        ({"hidden_activation": "swish9"}, "gelu_pytorch_tanh.*'swish9'"),
        ({"layer_types": ["sliding_attention"]}, "layer_types must list"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping must be null"),
    ],
)
def test_config_that_the_family_cannot_follow_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model_from_config({**GEMMA, "model_type": "gemma3_text", "num_hidden_layers": 2, **changes})


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"layer_types": ["conv", "full_attention", "conv"]}, "that no family supports: conv"),
        (
            {"text_config": {"layer_types": ["sliding_attention"]}},
            "all its layer types are supported by families: sliding_attention",
        ),
        ({}, r"whisper; a family of your own is one file, see docs/add-a-model\.md; installed as plug-ins "),
    ],
)
def test_an_unknown_family_is_named_with_the_kinds_of_layers_that_are_missing(
    config: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=f"unknown model_type 'lfm9'; accepted: .*{said}"):
        model_from_config({"model_type": "lfm9", **config})
