"""``kvhybrid run workload=prompts``: from a file of prompts to texts, and what is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvhybrid.cli import main
from kvhybrid.engine.quality import QualitySettings
from kvhybrid.errors import InputError
from kvhybrid.models.base import BackendChoice, HybridModel
from kvhybrid.sessions.run import build_engine, run
from kvhybrid.sessions.run_settings import RunSettings
from kvhybrid.settings.model import CheckpointSettings, ModelSettings
from kvhybrid.tracking.jsonl import JsonLinesTracker
from kvhybrid.workloads.prompts import Prompts
from tests.kvhybrid.text.tiny_checkpoint import MAX_LEN, save_model, save_tokenizer

PROMPTS = ["the cat sat on the zebra", "日本 héllo", "  the dog sat on the log", "the cat sat on the zebra"]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    save_model(folder)
    save_tokenizer(folder)
    return folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    place = tmp_path / "prompts.txt"
    place.write_text("\n".join([PROMPTS[0], "", "  ", *PROMPTS[1:]]) + "\n", encoding="utf-8")
    return place


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def kvhybrid_run(checkpoint: Path, file: Path, out: Path, *overrides: str) -> int:
    words = [
        f"model.path={checkpoint}",
        "model.dtype=float32",
        f"workload.path={file}",
        f"hydra.run.dir={out}",
        "quality.bytes=0",
    ]
    return main(["run", "model=hf", "workload=prompts", "workload.max_new_tokens=8", *words, *overrides])


def outputs_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "outputs.jsonl").read_text(encoding="utf-8").splitlines()]


def by_transformers(checkpoint: Path, prompts: list[str]) -> list[str]:
    """What transformers' own ``generate`` makes of the prompts."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    texts = []
    for prompt in prompts:
        inputs = tokenizer(prompt, return_tensors="pt")
        out = model.generate(**inputs, max_new_tokens=8, do_sample=False, eos_token_id=tokenizer.eos_token_id)
        texts.append(tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    return texts


def test_every_line_is_printed_and_kept_with_the_text_of_transformers(
    checkpoint: Path, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kvhybrid_run(checkpoint, file, tmp_path / "out", "tracking=none") == 0
    outputs = outputs_in(tmp_path / "out")
    assert [output["prompt"] for output in outputs] == PROMPTS
    assert [output["line"] for output in outputs] == [1, 4, 5, 6]
    assert [output["text"] for output in outputs] == by_transformers(checkpoint, PROMPTS)
    assert all(output["output_tokens"] == 8 for output in outputs)
    printed = capsys.readouterr().out
    assert [line.removeprefix("> ") for line in printed.splitlines() if line.startswith("> ")] == PROMPTS
    assert printed.splitlines()[-1] == str(tmp_path / "out")


def test_a_text_ends_with_the_tokenizers_last_token(checkpoint: Path, file: Path, tmp_path: Path) -> None:
    assert kvhybrid_run(checkpoint, file, tmp_path / "long", "tracking=none") == 0
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    first = int(model(**tokenizer(PROMPTS[0], return_tensors="pt")).logits[0, -1].argmax())
    save_tokenizer(checkpoint, eos_token=tokenizer.convert_ids_to_tokens(first))
    assert kvhybrid_run(checkpoint, file, tmp_path / "short", "tracking=none") == 0
    assert outputs_in(tmp_path / "long")[0]["output_tokens"] == 8
    assert outputs_in(tmp_path / "short")[0]["output_tokens"] == 1
    assert outputs_in(tmp_path / "short")[0]["text"] == ""


def test_nothing_steers_the_terminal(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("\x1b[31mred\n")
    assert kvhybrid_run(checkpoint, file, tmp_path / "out", "tracking=none") == 0
    assert "\x1b" not in capsys.readouterr().out
    assert outputs_in(tmp_path / "out")[0]["prompt"] == "\x1b[31mred"


def test_no_tracker_learns_a_prompt_or_a_text(checkpoint: Path, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert kvhybrid_run(checkpoint, file, out) == 0
    texts = [text for output in outputs_in(out) for text in (output["prompt"], output["text"])]
    others = [place for place in out.rglob("*") if place.is_file() and place.name != "outputs.jsonl"]
    assert any(place.suffix == ".wandb" for place in others)
    assert any(place.name == "metrics.jsonl" for place in others)
    for place in others:
        content = place.read_bytes()
        assert not [text for text in texts if text.encode() in content], place
        assert b"zebra" not in content


def test_settings_built_in_python_are_tracked_without_the_prompts(
    checkpoint: Path, file: Path, tmp_path: Path
) -> None:
    settings = RunSettings(
        model=CheckpointSettings(path=str(checkpoint)),
        workload=Prompts(path=str(file), max_new_tokens=4),
        tracking={"jsonl": JsonLinesTracker()},
        quality=QualitySettings(bytes=0),
    )
    run(settings, tmp_path / "out")
    assert len(outputs_in(tmp_path / "out")) == 4
    assert "zebra" not in (tmp_path / "out" / "config.yaml").read_text()


def test_a_model_of_bytes_needs_no_tokenizer(file: Path, tmp_path: Path) -> None:
    save_model(tmp_path, vocab_size=256)
    assert kvhybrid_run(tmp_path, file, tmp_path / "out", "tracking=none") == 0
    outputs = outputs_in(tmp_path / "out")
    assert [output["prompt_tokens"] for output in outputs] == [len(prompt.encode()) for prompt in PROMPTS]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (None, "prompts.txt: cannot be read: No such file or directory"),
        (b"", "prompts.txt: no prompt in it; accepted: one prompt per line"),
        (b"\n  \n", "prompts.txt: no prompt in it"),
        (b"the \xff cat\n", "prompts.txt: cannot be read: byte 4 is not UTF-8"),
        (
            b"short\n\n" + b"xyz" * 30,
            f"line 3 with workload.max_new_tokens=8 has 98 tokens, more than the {MAX_LEN} of the model",
        ),
    ],
    ids=["missing", "empty", "blank", "not UTF-8", "too long"],
)
def test_a_file_that_cannot_be_used_is_refused_on_one_line(
    lines: bytes | None, message: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.txt"
    if lines is not None:
        file.write_bytes(lines)
    assert kvhybrid_run(checkpoint, file, tmp_path / "out") == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert said.startswith("kvhybrid run: workload.path: ")
    assert "\n" not in said
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_tokenizer_is_refused_before_its_weights_are_read(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gemma3_text", "vocab_size": 300}')
    assert kvhybrid_run(tmp_path, file, tmp_path / "out") == 2
    said = capsys.readouterr().err.strip()
    assert f"{tmp_path}: no tokenizer; accepted for prompts: a folder with tokenizer.json" in said
    assert "\n" not in said


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(
    checkpoint: Path, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(checkpoint, vocab_size=100)
    assert kvhybrid_run(checkpoint, file, tmp_path / "out") == 2
    assert "but the model's end at 99" in capsys.readouterr().err


def test_a_model_of_another_package_may_have_no_words(file: Path) -> None:
    @dataclass(kw_only=True)
    class Theirs(ModelSettings):
        def build(self, backends: BackendChoice | None = None) -> HybridModel:
            raise AssertionError("nothing is built")

    with pytest.raises(InputError, match="Theirs has no tokenizer; accepted for prompts: model=hf"):
        build_engine(RunSettings(model=Theirs(), workload=Prompts(path=str(file))))
