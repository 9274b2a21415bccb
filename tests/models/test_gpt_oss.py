"""gpt-oss: windows and full layers, sinks in every softmax, YaRN, experts with biases and clamps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import transformers
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from kvhybrid.models.backends.base import AttentionNeed
from kvhybrid.models.backends.torch_attention import TorchAttention
from kvhybrid.models.backends.visibility import Visibility
from kvhybrid.models.base import ForwardBatch, GroupBatch
from kvhybrid.models.layers.scaled_rope import read_rope
from kvhybrid.models.loading import load_model, model_from_config, model_from_hf
from tests.models.every_way import differences, engine_tokens
from tests.models.paged_driver import PagedDriver, run_greedily
from tests.models.tiny_models import CONFIGS, full_logits, generated, random_prompt, tiny

TOLERANCE = 1e-4
"""Largest difference of a logit, in float32. Measured maxima: whole prompt 8.3e-7, token by token 1.4e-6, random
chunks 1.4e-6, ragged batch of eight 1.9e-6."""

VARIANTS: dict[str, dict[str, Any]] = {
    "as released": {},
    "full layers first, window of 5": {
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "sliding_window": 5,
    },
    "no biases, one expert, plain rope": {
        "attention_bias": False,
        "num_experts_per_tok": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    },
}
YARN = CONFIGS["gpt_oss"]["rope_parameters"]


def with_sinks(model: PreTrainedModel, lowest: float = -2.0, highest: float = 3.0) -> PreTrainedModel:
    """Sinks from next to nothing to most of a head's attention."""
    for layer in model.model.layers:
        sinks = layer.self_attn.sinks
        sinks.data = torch.linspace(lowest, highest, len(sinks))
    return model


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_however_the_prompts_are_cut_and_batched(variant: str) -> None:
    oracle = with_sinks(tiny("gpt_oss", **VARIANTS[variant]))
    found = differences(model_from_hf(oracle), oracle)
    assert max(found.values()) < TOLERANCE, found


def test_greedy_tokens_equal_those_of_generate() -> None:
    oracle = with_sinks(tiny("gpt_oss"))
    prompts = {f"s{n}": random_prompt(n, seed=n) for n in (1, 3, 7, 8, 9, 13, 20, 31)}
    expected = {name: generated(oracle, prompt, 10) for name, prompt in prompts.items()}
    assert len({token for tokens in expected.values() for token in tokens}) > 16
    assert run_greedily(PagedDriver(model_from_hf(oracle)), prompts, 10) == expected
    assert engine_tokens(oracle, list(prompts.values()), 10) == list(expected.values())


@pytest.mark.parametrize(
    "change",
    [
        {"sliding_window": 512},
        {"swiglu_limit": 100.0},
        {"swiglu_alpha": 1.0},
        {"num_experts_per_tok": 3},
        {"rope_parameters": {**YARN, "rope_type": "default"}},
        {"rope_parameters": {**YARN, "attention_factor": 1.0}},
    ],
    ids=str,
)
def test_each_feature_moves_the_logits(change: dict[str, Any]) -> None:
    """Without this the comparisons above would not notice that one is missing."""
    prompt = random_prompt(60, seed=1)
    with_it, without = (full_logits(with_sinks(tiny("gpt_oss", **c)), prompt) for c in ({}, change))
    assert (with_it - without).abs().max() > 1000 * TOLERANCE


def test_sinks_move_the_logits() -> None:
    prompt = random_prompt(60, seed=1)
    with_them, without = (
        full_logits(with_sinks(tiny("gpt_oss"), *ends), prompt) for ends in ((-2.0, 3.0), (-1e4, -1e4))
    )
    assert (with_them - without).abs().max() > 1000 * TOLERANCE


@pytest.mark.parametrize("soft_cap", [None, 1.5])
@pytest.mark.parametrize("visibility", [Visibility(), Visibility(window=3)], ids=["full", "window"])
def test_sinks_are_one_more_logit_of_the_softmax(visibility: Visibility, soft_cap: float | None) -> None:
    """A prompt and a decode step, against a softmax in float64."""
    generator = torch.Generator().manual_seed(0)
    need = AttentionNeed("layers.0", 4, 2, 8, 0.4, visibility, soft_cap, sink_logits=True)
    backend = TorchAttention(need)
    q, k, v = (torch.randn(10, heads, 8, generator=generator) for heads in (4, 2, 2))
    sinks = torch.tensor([-1.0, 0.5, 2.0, -float("inf")])
    pages = {part: torch.full((4, 4, 2, 8), float("nan")) for part in ("k", "v")}
    table = torch.tensor([[2, 3, 1]])
    found = []
    for start, stop in ((0, 9), (9, 10)):
        positions = torch.arange(start, stop)
        group = GroupBatch(4, table, table[0, positions // 4] * 4 + positions % 4)
        batch = ForwardBatch(torch.zeros(0), positions, (0, stop - start), (start,), torch.zeros(0), {})
        new = slice(start, stop)
        plan = backend.plan(batch, group)
        found.append(backend.attend_with_sinks(q[new], k[new], v[new], sinks, pages, plan))
    sees = visibility.mask(torch.arange(10)[:, None], torch.arange(10))
    keys, values = (part.double().repeat_interleave(2, dim=1) for part in (k, v))
    scores = torch.einsum("qhd,lhd->hql", q.double(), keys) * need.scale
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    weights = scores.masked_fill(~sees, -float("inf")).exp()
    shares = weights / (weights.sum(-1, keepdim=True) + sinks.double().exp()[:, None, None])
    expected = torch.einsum("hql,lhd->qhd", shares, values)
    assert (torch.cat(found) - expected).abs().max() < 2e-6


def test_backend_without_sink_logits_is_refused_with_both_names() -> None:
    class Plain(TorchAttention):
        name: ClassVar[str] = "plain"
        sink_logits: ClassVar[bool] = False

    need = AttentionNeed("layers.7", 4, 2, 8, 0.4, Visibility(), sink_logits=True)
    with pytest.raises(ValueError, match=r"layers\.7 needs sink logits, which attention backend plain cannot do"):
        Plain(need)


def test_specs_say_what_each_layer_keeps() -> None:
    model = model_from_config({**CONFIGS["gpt_oss"], "model_type": "gpt_oss"})
    specs = model.layer_specs(16, torch.bfloat16)
    assert [spec.kind for spec in specs.values()] == ["sliding_window", "full"] * 2
    assert specs["layers.0.self_attn"].live(21) == (range(14, 21),)


def test_older_config_without_layer_types_and_rope_parameters(tmp_path: Path) -> None:
    oracle = tiny("gpt_oss")
    oracle.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    scaling = config.pop("rope_parameters")
    del config["layer_types"]
    config |= {"rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}
    path.write_text(json.dumps(config))
    prompt = random_prompt(40, seed=3)
    found = PagedDriver(load_model(tmp_path)).step({"a": prompt})["a"]
    assert (found - full_logits(oracle, prompt)).abs().max() < TOLERANCE


@pytest.mark.parametrize(
    "changes",
    [
        {"truncate": False},
        {"truncate": True},
        {"attention_factor": 1.25},
        {"mscale": 0.7, "mscale_all_dim": 1.1},
        {"beta_fast": 4.0, "beta_slow": 4.0},
        {"factor": 1.0},
    ],
    ids=str,
)
def test_yarn_turns_as_fast_and_as_wide_as_that_of_transformers(changes: dict[str, Any]) -> None:
    parameters = {
        "rope_type": "yarn",
        "rope_theta": 150_000.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        **changes,
    }
    config = transformers.GptOssConfig(head_dim=64, rope_parameters=parameters)
    frequencies, amplitude = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    rope = read_rope(64, parameters, 1.0)
    assert torch.allclose(rope.frequencies(torch.device("cpu")), frequencies, rtol=1e-6, atol=0.0)
    cos_TD, _ = rope.rotation(torch.tensor([0]), torch.float32)
    assert torch.allclose(cos_TD, torch.tensor(float(amplitude)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantization_config": {"quant_method": "mxfp4"}}, "'mxfp4' is not supported; only float weights"),
        ({"layer_types": ["chunked_attention"] * 4}, "layer_types must list 'sliding_attention' or"),
        ({"sliding_window": None}, "'sliding_attention', which needs sliding_window, found null"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "'yarn' needs factor, original_max_position_embeddings"),
    ],
)
def test_config_that_the_family_cannot_follow_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model_from_config({**CONFIGS["gpt_oss"], "model_type": "gpt_oss", **changes})
