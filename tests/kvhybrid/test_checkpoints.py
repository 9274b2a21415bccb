"""A checkpoint runs with a family of ours or, where there is none, with the code of transformers."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from kvhybrid.checkpoints import adopt, load_checkpoint, load_with_transformers, with_transformers
from kvhybrid.engine.engine import Engine
from kvhybrid.models.base import BackendChoice
from kvhybrid.models.transformers.model import TransformersModel
from tests.models.tiny_models import CONFIGS, random_prompt, tiny
from tests.models.transformers.tiny_decoders import decoder, greedy, random_tokens

pytestmark = pytest.mark.usefixtures("one_thread")

SHORT = ("gemma3_text", "jamba")
FAMILIES = [pytest.param(name, marks=() if name in SHORT else pytest.mark.long) for name in sorted(CONFIGS)]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    decoder("llama").save_pretrained(folder)
    return folder


def changed(folder: Path, target: Path, **changes: Any) -> Path:
    """A copy of a checkpoint with other keys in its config."""
    target.mkdir()
    for path in folder.iterdir():
        (target / path.name).symlink_to(path)
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").unlink()
    (target / "config.json").write_text(json.dumps({**config, **changes}))
    return target


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_family_of_ours_and_transformers_hit_the_same(model_type: str) -> None:
    """Tokens and the hits of every group, for prompts that share a prefix and come twice."""
    oracle = tiny(model_type)
    limits: dict[str, Any] = {"block_size": 4, "num_blocks": 400, "max_model_len": 128, "max_batched_tokens": 64}
    engines = [Engine(adopt(oracle), **limits), Engine(with_transformers(oracle), **limits)]
    shared = random_prompt(60, seed=1)
    prompts = [shared + random_prompt(length, seed=length) for length in (1, 5, 9)]
    found = [[engine.generate([prompt], 3) for prompt in (*prompts, *prompts)] for engine in engines]
    assert found[0] == found[1]
    ours, theirs = (
        [(group.tokens_asked, group.tokens_hit, group.tokens_own_hit) for group in engine.stats().groups]
        for engine in engines
    )
    assert ours == theirs
    assert ours[0][1] > 0


def test_a_type_without_a_family_runs_with_transformers_and_says_so(
    llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prompts = [random_tokens(9, seed=2)]
    with caplog.at_level(logging.WARNING):
        engine = Engine.from_hf(llama, max_model_len=64, eos_token_id=None)
    assert "'llama': no family of ours reads it, so transformers' own code runs it" in caplog.text
    assert isinstance(engine.model, TransformersModel)
    assert engine.generate(prompts, 4) == greedy(decoder("llama"), prompts, 4)


def test_a_model_object_without_a_family_runs_with_transformers() -> None:
    prompts = [random_tokens(9, seed=2)]
    engine = Engine.from_hf(decoder("llama"), max_model_len=64, eos_token_id=None)
    assert engine.generate(prompts, 4) == greedy(decoder("llama"), prompts, 4)


def test_a_family_of_ours_goes_first(tmp_path: Path) -> None:
    tiny("gemma3_text").save_pretrained(tmp_path)
    assert not isinstance(load_checkpoint(tmp_path, torch.float32), TransformersModel)
    assert isinstance(load_with_transformers(tmp_path, torch.float32), TransformersModel)


def test_weights_that_are_pickled_are_refused(llama: Path, tmp_path: Path) -> None:
    folder = changed(llama, tmp_path / "pickled")
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="only safetensors are accepted"):
        load_checkpoint(folder, torch.float32)


def test_code_in_the_folder_does_not_run(llama: Path, tmp_path: Path) -> None:
    folder = changed(llama, tmp_path / "code", auto_map={"AutoModelForCausalLM": "own.Own", "AutoConfig": "own.C"})
    (folder / "own.py").write_text("raise SystemExit('the code of the folder ran')")
    assert isinstance(load_checkpoint(folder, torch.float32), TransformersModel)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_hidden_layers": 9}, "weights are missing: model.layers.8."),
        ({"intermediate_size": 20}, "transformers cannot load it: .*"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config: .* not compressed"),
        ({"model_type": "bart"}, "'bart': an encoder-decoder; accepted: decoder-only"),
        ({"num_attention_heads": "many"}, "cannot run this config .*num_attention_heads"),
    ],
)
def test_a_checkpoint_that_cannot_run_is_refused(
    changes: dict[str, Any], expected: str, llama: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=expected) as caught:
        load_checkpoint(changed(llama, tmp_path / "changed", **changes), torch.float32)
    assert len(str(caught.value).splitlines()) == 1


def test_kernels_of_ours_are_refused() -> None:
    with pytest.raises(ValueError, match="transformers' code brings its own kernels; accepted: torch"):
        with_transformers(decoder("llama"), BackendChoice(attention="auto"))
