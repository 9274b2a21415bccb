"""A request whose logits are not finite ends with an error; the others go on, and nothing of it stays cached."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kvhybrid.engine.engine import Engine
from kvhybrid.engine.quality import QualitySettings
from kvhybrid.engine.sampling import SamplingParams
from kvhybrid.errors import InputError
from kvhybrid.models import weights
from kvhybrid.models.base import HybridModel
from kvhybrid.models.loading import load_model
from kvhybrid.sessions.run import run
from kvhybrid.sessions.run_settings import PoolSettings, RunSettings
from kvhybrid.settings.model import CheckpointSettings, Gemma3Settings, JambaSettings, Llama4Settings
from kvhybrid.workloads.random import Random

BAD = 7
"""A token whose embedding is no number while `poisoned`."""
MODELS = {"gemma3": Gemma3Settings, "jamba": JambaSettings, "llama4": Llama4Settings}
NEW_TOKENS = 6
PREFIX = list(range(10, 80))
"""Longer than a window and a chunk, so that their first blocks are free again, and still keyed, when it ends."""


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> HybridModel:
    return MODELS[request.param]().build()


class Poison:
    """Makes a token's embedding no number for a while, as a fault of the hardware would."""

    def __init__(self, model: HybridModel, value: float) -> None:
        self.embedding = model.get_submodule("embed_tokens")
        self.value = value

    def __enter__(self) -> None:
        self.hook = self.embedding.register_forward_hook(self._spoil)

    def __exit__(self, *error: object) -> None:
        self.hook.remove()

    def _spoil(self, module: nn.Module, given: tuple[Tensor], x_TM: Tensor) -> Tensor:
        return x_TM.masked_fill((given[0] == BAD)[:, None], self.value)


def engine_of(model: HybridModel, **options: Any) -> Engine:
    return Engine(model, num_blocks=400, block_size=4, max_batched_tokens=16, max_model_len=128, **options)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_it_ends_with_an_error_that_names_it_and_the_others_get_their_tokens(
    model: HybridModel, value: float, temperature: float
) -> None:
    prompts = {"one": PREFIX[:9], "two": [*PREFIX[20:40], 3], "ill": [*PREFIX[:30], BAD, 5]}
    sampling = SamplingParams(temperature=temperature, seed=1)

    def generated(names: list[str]) -> tuple[dict[str, list[int]], dict[str, str]]:
        engine = engine_of(model)
        tokens: dict[str, list[int]] = {name: [] for name in names}
        failed: dict[str, str] = {}
        for name in names:
            engine.add_request(prompts[name], max_new_tokens=NEW_TOKENS, sampling=sampling, request_id=name)
        for output in engine.stream():
            failed |= output.failed
            for name, new in output.tokens.items():
                tokens[name] += new
        assert engine.cache.usage == 0
        return tokens, failed

    expected, none = generated(["one", "two"])
    assert not none
    with Poison(model, value):
        tokens, failed = generated(["one", "ill", "two"])
    assert tokens == {**expected, "ill": []}
    assert failed == {"ill": "request 'ill': the model returned logits that are not finite (NaN or infinite)"}


def test_none_of_its_keys_stays(model: HybridModel) -> None:
    """Neither those of blocks that it holds, nor of blocks that its windows have left, nor of those it shares."""
    prompt = [*PREFIX[:20], BAD, *PREFIX[20:]]
    expected = engine_of(model, enable_prefix_caching=False).generate([prompt], NEW_TOKENS)
    engine = engine_of(model)
    other = PREFIX[::-1]
    engine.generate([[*PREFIX[:20], 3]], 1)
    engine.generate([other], 1)
    with Poison(model, torch.nan), pytest.raises(FloatingPointError, match=r"request 'request-2': .* not finite"):
        engine.generate([prompt], NEW_TOKENS)
    assert not engine.has_unfinished

    def tokens_hit() -> int:
        return max(group.tokens_hit for group in engine.stats().groups)

    before = tokens_hit()
    assert engine.generate([prompt], NEW_TOKENS) == expected
    assert tokens_hit() == before, "something of the failed request was found in the cache"
    engine.generate([other], 1)
    assert tokens_hit() > before, "the prefixes of other requests are still there"


def test_a_request_that_shares_its_blocks_in_the_same_step_goes_on(model: HybridModel) -> None:
    healthy, ill = [*PREFIX[:40], 5, 6], [*PREFIX[:40], BAD, 6]
    expected = engine_of(model, enable_prefix_caching=False).generate([healthy], NEW_TOKENS)
    engine = engine_of(model)
    engine.generate([PREFIX[:41]], 1)
    for prompt, name in ((healthy, "healthy"), (ill, "ill")):
        engine.add_request(prompt, max_new_tokens=NEW_TOKENS, request_id=name)
    tokens: list[int] = []
    with Poison(model, torch.nan):
        for output in engine.stream():
            tokens += output.tokens.get("healthy", [])
    assert [tokens] == expected


def test_a_run_tells_of_it_and_its_files_are_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Ill(Gemma3Settings):
        def build(self, backends: Any = None) -> HybridModel:
            model = super().build(backends)
            Poison(model, torch.nan).__enter__()
            return model

    workload = Random(requests=12, prompt_tokens=30, max_new_tokens=4)
    settings = RunSettings(
        model=Ill(vocab_size=64), workload=workload, pool=PoolSettings(num_blocks=256), tracking={}
    )
    summary = run(settings, tmp_path / "out")
    assert summary.requests + len(summary.failures) == 12
    assert 0 < len(summary.failures) < 12
    found = json.loads((tmp_path / "out" / "summary.json").read_text(), parse_constant=pytest.fail)
    assert found["failed_requests"] == len(summary.failures)
    assert found["request_failures"] == dict(summary.failures)
    reason = f"{len(summary.failures)} of 12 requests failed: {next(iter(summary.failures.values()))}"
    assert (found["status"], found["reason"]) == ("failed", reason)
    printed = capsys.readouterr()
    assert all(reason in printed.out for reason in summary.failures.values())
    assert printed.err.splitlines()[-1] == f"kvhybrid run: {reason}"


def test_the_quality_of_a_model_without_finite_logits_is_refused(tmp_path: Path) -> None:
    class Ill(CheckpointSettings):
        def build(self, backends: Any = None) -> HybridModel:
            model = load_model(weights.folder_of("gemma3_bytes"))
            model.get_parameter("norm.weight").fill_(torch.nan)
            return model

    settings = RunSettings(
        model=Ill(path="gemma3_bytes"),
        workload=Random(requests=1),
        pool=PoolSettings(num_blocks=256),
        quality=QualitySettings(bytes=64),
        tracking={},
    )
    with pytest.raises(InputError, match="quality: the model's logits are not finite"):
        run(settings, tmp_path / "out")
    assert not (tmp_path / "out").exists()
