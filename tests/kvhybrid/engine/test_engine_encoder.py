"""Engines of encoder-decoder models: the same tokens whatever the cache does, and no wrong block shared."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from kvhybrid.cli import main
from kvhybrid.engine.engine import Engine
from kvhybrid.planning import PlanningError
from kvhybrid.scenarios.check import check
from kvhybrid.scenarios.file import read_scenarios
from kvhybrid.scenarios.recorder import Recorder
from kvhybrid.settings.model import Gemma3Settings
from tests.models.tiny_encoder_decoders import (
    START,
    decoder_prompt,
    encoder_tokens,
    features,
    generated,
    tiny_t5gemma,
    tiny_whisper,
)

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILIES = ("t5gemma", "whisper")
ENCODER_LENS = (3, 40, 9, 1, 17, 60, 33, 24)
NEW_TOKENS = 6
GROWTH = 14
"""New tokens where requests that are admitted together outgrow a small pool."""
LIMITS = {"block_size": 4, "num_blocks": 400, "max_model_len": 64}


@dataclass(frozen=True)
class Task:
    """Eight decoder prompts, the encoder inputs beside them, and what transformers makes of each pair."""

    oracle: PreTrainedModel
    prompts: list[list[int]]
    inputs: list[Any]
    expected: list[list[int]]
    grown: list[list[int]]
    """As `expected`, and on to `GROWTH` tokens."""
    expected_of_one_prompt: list[list[int]]
    """Of the fourth prompt beside each encoder input."""

    def engine(self, **options: Any) -> Engine:
        """An engine whose fresh pages hold NaN: reading an unwritten entry shows in the tokens."""
        most = {"max_encoder_tokens": max(ENCODER_LENS)}
        engine = Engine.from_hf(self.oracle, **{**LIMITS, **most, **options})
        for tensor in engine.pool.tensors:
            tensor[1:] = 0xFF
        return engine


@pytest.fixture(scope="module", params=FAMILIES)
def task(request: pytest.FixtureRequest) -> Task:
    """Prompts of 1 to 24 tokens; four of them begin with the same 13 tokens."""
    head = decoder_prompt(13, seed=0)
    tails = [decoder_prompt(n, seed=n)[1:] for n in (3, 6, 9, 12)]
    prompts = [*(head + tail for tail in tails), *(decoder_prompt(n, seed=50 + n) for n in (1, 2, 8, 19))]
    if request.param == "whisper":
        oracle = tiny_whisper(tie_word_embeddings=False, decoder_layers=2)
        inputs: list[Any] = [features(i) for i in range(8)]
    else:
        oracle = tiny_t5gemma(tie_word_embeddings=False, num_hidden_layers=2)
        inputs = [encoder_tokens(length, i) for i, length in enumerate(ENCODER_LENS)]
    grown = [generated(oracle, given, prompt, GROWTH) for given, prompt in zip(inputs, prompts, strict=True)]
    return Task(
        oracle,
        prompts,
        inputs,
        [tokens[:NEW_TOKENS] for tokens in grown],
        grown,
        [generated(oracle, given, prompts[3], NEW_TOKENS) for given in inputs],
    )


def count_encoder_runs(engine: Engine) -> list[int]:
    """A list that grows by one entry with every run of the encoder from here on."""
    runs: list[int] = []
    engine.model.encoder.register_forward_hook(lambda *_: runs.append(1))
    return runs


def cross_groups(engine: Engine) -> list[int]:
    return [i for i, group in enumerate(engine.plan.config.groups) if group.spec.source == "encoder"]


def decoder_hits(engine: Engine) -> int:
    return engine.stats().groups[0].tokens_hit


def assert_nothing_is_held(engine: Engine) -> None:
    assert not engine.has_unfinished
    assert engine.cache.num_free_blocks == engine.plan.num_blocks - 1


# ---- the same tokens


def test_the_tokens_differ_from_one_encoder_input_to_another(task: Task) -> None:
    """Without this the comparisons below would compare little."""
    assert len({token for tokens in task.expected for token in tokens}) > 20
    assert len({tuple(tokens) for tokens in task.expected_of_one_prompt}) > 4


def test_an_input_that_is_overwritten_after_it_was_queued_is_read_as_it_was(task: Task) -> None:
    engine = task.engine()
    given, other = task.inputs[0], task.inputs[1]
    buffer = given.clone() if isinstance(given, torch.Tensor) else list(given)
    request_id = engine.add_request(task.prompts[0], encoder_input=buffer, max_new_tokens=NEW_TOKENS)
    buffer[:] = other
    tokens = [token for output in engine.stream() for token in output.tokens.get(request_id, [])]
    assert tokens == task.expected[0]
    assert engine.generate(task.prompts[:1], NEW_TOKENS, encoder_inputs=[given]) == task.expected[:1]


VARIANTS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "without prefix caching": {"enable_prefix_caching": False},
    "chunks of 3": {"max_batched_tokens": 3},
    "keys finer than blocks": {"block_size": 16, "hash_block_size": 4},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_tokens_are_those_of_transformers(task: Task, variant: str) -> None:
    engine = task.engine(**VARIANTS[variant])
    runs = count_encoder_runs(engine)
    for _ in range(2):
        assert engine.generate(task.prompts, NEW_TOKENS, encoder_inputs=task.inputs) == task.expected
    assert_nothing_is_held(engine)
    assert len(runs) == 16, "once for each request"
    caches = engine.cache.enable_caching
    assert (decoder_hits(engine) > 0) == caches


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_preempted_requests_read_their_encoder_input_again(task: Task, enable_prefix_caching: bool) -> None:
    options: dict[str, Any] = {"max_batched_tokens": 16, "max_model_len": 40}
    needed = sum(task.engine(**options).plan.blocks_per_request)
    engine = task.engine(**options, num_blocks=needed + 1, enable_prefix_caching=enable_prefix_caching)
    runs = count_encoder_runs(engine)
    assert engine.generate(task.prompts, GROWTH, encoder_inputs=task.inputs) == task.grown
    assert engine.scheduler.num_preemptions > 0
    assert len(runs) == 8 + engine.scheduler.num_preemptions
    assert_nothing_is_held(engine)


def test_after_a_forward_pass_that_failed_the_encoder_runs_again(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = task.engine()
    forward = engine.model.forward

    def fail_once(batch: Any) -> Any:
        monkeypatch.setattr(engine.model, "forward", forward)
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(engine.model, "forward", fail_once)
    for name, (prompt, given) in enumerate(zip(task.prompts, task.inputs, strict=True)):
        engine.add_request(prompt, encoder_input=given, max_new_tokens=NEW_TOKENS, request_id=str(name))
    with pytest.raises(RuntimeError, match="the device is gone"):
        engine.step()
    for tensor in engine.pool.tensors:
        tensor[1:] = 0xFF
    found: dict[str, list[int]] = {str(i): [] for i in range(8)}
    for output in engine.stream():
        for name, tokens in output.tokens.items():
            found[name] += tokens
    assert list(found.values()) == task.expected


# ---- what may be shared


def test_equal_prompts_with_different_encoder_inputs_share_nothing(task: Task) -> None:
    prompt = task.prompts[3]
    engine = task.engine()
    for given, expected in zip(task.inputs, task.expected_of_one_prompt, strict=True):
        assert engine.generate([prompt], NEW_TOKENS, encoder_inputs=[given]) == [expected]
    assert decoder_hits(engine) == 0
    together = engine.generate([prompt] * 8, NEW_TOKENS, encoder_inputs=task.inputs)
    assert together == task.expected_of_one_prompt
    assert decoder_hits(engine) == 8 * ((len(prompt) - 1) // 4 * 4)


def test_equal_prompts_with_equal_encoder_inputs_share_the_decoder_s_blocks_alone(task: Task) -> None:
    prompt, given = task.prompts[3], task.inputs[5]
    copied = given.clone() if isinstance(given, torch.Tensor) else list(given)
    engine = task.engine()
    runs = count_encoder_runs(engine)
    for name, same in (("a", given), ("b", copied)):
        engine.add_request(prompt, encoder_input=same, request_id=name)
        engine.step()
    a, b = (engine.cache.get_block_ids(name) for name in "ab")
    for cross in cross_groups(engine):
        assert len(a[cross]) == len(b[cross]) == -(-engine.scheduler.running[0].num_encoder_tokens // 4)
        assert not {*a[cross].tolist()} & {*b[cross].tolist()}
    assert {*a[0].tolist()} & {*b[0].tolist()} - {0}
    assert len(runs) == 2


def test_requests_of_another_salt_share_nothing(task: Task) -> None:
    engine = task.engine()
    for salt in (None, "a", "b"):
        engine.generate(task.prompts[3:4], 1, encoder_inputs=task.inputs[3:4], cache_salt=salt)
    assert decoder_hits(engine) == 0
    engine.generate(task.prompts[3:4], 1, encoder_inputs=task.inputs[3:4], cache_salt="a")
    assert decoder_hits(engine) > 0


def test_a_recording_of_the_cache_plays_again(task: Task, tmp_path: Path) -> None:
    with Recorder(tmp_path / "out.jsonl", id="encoder") as recorder:
        engine = task.engine(cache_manager=recorder.manager)
        for _ in range(2):
            engine.generate(task.prompts, 2, encoder_inputs=task.inputs)
        engine.generate([task.prompts[3]] * 2, 2, encoder_inputs=task.inputs[:2])
    [scenario] = read_scenarios(tmp_path / "out.jsonl")
    assert "note" not in scenario.content
    assert check(scenario.content) is None


# ---- planning and mistakes


def test_the_plan_holds_the_longest_encoder_input_beside_the_longest_text(task: Task) -> None:
    for most in (60, 24):
        engine = task.engine(max_encoder_tokens=most)
        assert {engine.plan.blocks_per_request[cross] for cross in cross_groups(engine)} == {-(-most // 4)}
    needed = sum(task.engine().plan.blocks_per_request)
    assert task.engine(num_blocks=needed + 1).plan.num_blocks == needed + 1
    with pytest.raises(PlanningError, match=f"needs {needed} blocks and the null block"):
        task.engine(num_blocks=needed)
    own = Engine.from_hf(task.oracle, block_size=4, max_model_len=64, num_blocks=1000)
    assert own.max_encoder_tokens == own.model.max_encoder_tokens
    with pytest.raises(PlanningError, match="max_encoder_tokens must be at least 1, found 0"):
        task.engine(max_encoder_tokens=0)


def test_the_longest_request_fits_in_the_smallest_pool(task: Task) -> None:
    options: dict[str, Any] = {"max_model_len": 33, "max_batched_tokens": 8}
    needed = sum(task.engine(**options).plan.blocks_per_request)
    engine = task.engine(**options, num_blocks=needed + 1)
    prompt, given = decoder_prompt(33 - NEW_TOKENS, seed=3), task.inputs[5]
    expected = generated(task.oracle, given, prompt, NEW_TOKENS)
    assert engine.generate([prompt], NEW_TOKENS, encoder_inputs=[given]) == [expected]
    assert engine.scheduler.num_preemptions == 0


def refused(engine: Engine, said: str, **given: Any) -> None:
    with pytest.raises(ValueError, match=said):
        engine.add_request([START, 2], **given)
    assert not engine.has_unfinished


def test_a_wrong_encoder_input_is_refused_by_name(task: Task) -> None:
    engine = task.engine(max_encoder_tokens=22)
    refused(engine, "request 'r': this model has an encoder and needs an encoder_input", request_id="r")
    refused(engine, "request 'r': encoder_input must be a .*, found dict", request_id="r", encoder_input={})
    long = task.inputs[-1]
    tokens = 23 if isinstance(long, torch.Tensor) else 24
    said = f"encoder_input gives {tokens} encoder tokens; max_encoder_tokens is 22"
    refused(engine, said, encoder_input=long)


def test_as_many_encoder_inputs_as_prompts_are_wanted(task: Task) -> None:
    engine = task.engine()
    with pytest.raises(ValueError, match="8 prompts need as many encoder inputs, found 7"):
        engine.generate(task.prompts, encoder_inputs=task.inputs[:7])
    with pytest.raises(ValueError, match="needs an encoder_input"):
        engine.generate(task.prompts)
    assert_nothing_is_held(engine)


def test_a_model_without_an_encoder_takes_no_encoder_input() -> None:
    model = Gemma3Settings(num_hidden_layers=2).build()
    engine = Engine(model, num_blocks=100, max_model_len=64)
    refused(
        engine,
        "request 'r': encoder_input was given, and this model has no encoder",
        request_id="r",
        encoder_input=[1],
    )
    with pytest.raises(ValueError, match="max_encoder_tokens = 5 was given, and this model has no encoder"):
        Engine(model, num_blocks=100, max_model_len=64, max_encoder_tokens=5)


def test_positions_that_were_not_learned_are_refused() -> None:
    with pytest.raises(ValueError, match="max_model_len must be at most 128, the positions that this model has"):
        Engine.from_hf(tiny_whisper(), max_model_len=129)


def test_the_run_verb_says_that_it_has_no_encoder_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_whisper().save_pretrained(tmp_path / "model", safe_serialization=True)
    capsys.readouterr()
    assert main(["run", "model=hf", "model.path=model", "workload=random"]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert re.search("Whisper needs encoder inputs, which this verb does not support", line)
    assert [place.name for place in tmp_path.iterdir()] == ["model"]
