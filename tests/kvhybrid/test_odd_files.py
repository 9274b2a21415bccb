"""Odd files at every place that reads one: one line with exit code 2 at once, and nothing left behind."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kvhybrid import files
from kvhybrid.cli import main
from kvhybrid.errors import InputError
from kvhybrid.replay.mooncake import MooncakeTrace
from tests.kvhybrid.named_files import NO_FILES, no_file

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = str(ROOT / "docs" / "examples" / "window_resume.jsonl")
PLACES: Mapping[str, list[str]] = {
    "trace.path": ["replay", "trace.path=in"],
    "workload.path": ["run", "workload=prompts", "workload.path=in", "quality=none"],
    "quality.path": ["run", "workload.requests_per_prefix=1", "quality.path=in"],
    "scenario": ["scenario", "in"],
    "--deviations": ["scenario", "--deviations", "in", EXAMPLE],
}
CONTENTS: Mapping[str, tuple[bytes, str]] = {
    "not UTF-8": (b"\xff\xfe", "UTF-8"),
    "too large": (b"\0" * 4_097, "has more than 4,096 bytes"),
}
JSON_CONTENTS: Mapping[str, str] = {
    "deep nesting": "[" * 2_000 + "]" * 2_000,
    "unfinished nesting": '{"a": ' * 2_000,
    "a number of 4,000 digits and more": "1" * 4_090 + "e",
}


def refused(place: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says against the file ``in``."""
    assert main(PLACES[place]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert captured.out == ""
    assert "in" in line.split(":")[1] + line.split(":")[2]
    return line


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    assert {place.name for place in tmp_path.iterdir()} <= {"in", "behind the link"}


@pytest.mark.parametrize("kind", ["FIFO", "device", "folder", "nothing"])
@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_file_is_refused(place: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    if kind in NO_FILES:
        with no_file(kind, Path("in")):
            assert f"it is {NO_FILES[kind]}" in refused(place, capsys)
        return
    assert "No such file or directory" in refused(place, capsys)


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_text_of_bearable_size_is_refused(
    place: str, content: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 4_096)
    monkeypatch.setattr(files, "MOST_LINE_BYTES", 4_096)
    data, said = CONTENTS[content]
    Path("in").write_bytes(data)
    assert said in refused(place, capsys)


@pytest.mark.parametrize("content", JSON_CONTENTS)
@pytest.mark.parametrize("place", ["trace.path", "scenario", "--deviations"])
def test_odd_json_and_toml_are_refused(place: str, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = JSON_CONTENTS[content]
    Path("in").write_text(f"a = {text}\n" if place == "--deviations" else f"{text}\n")
    assert len(refused(place, capsys)) < 300


LINE = {"timestamp": 1, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
ODD = [-1, 10**30, 10**400, float("nan"), float("inf"), -float("inf"), 1e300, True, "x", None, [], {}]


@pytest.mark.parametrize("key", ["timestamp", "input_length", "output_length", "hash_ids"])
def test_an_odd_number_in_a_trace_is_refused(key: str) -> None:
    for odd in ODD:
        Path("in").write_text(json.dumps({**LINE, key: odd}) + "\n")
        with pytest.raises(InputError, match=f"^in, line 1: {key}: found .*; accepted: [^\n]*$"):
            MooncakeTrace(path="in").read()


SCENARIO: dict[str, Any] = {
    "id": "numbers everywhere",
    "config": {
        "num_blocks": 8,
        "hash_block_size": 4,
        "max_model_len": 64,
        "watermark": 0.1,
        "max_in_flight_tokens": 8,
        "retention_interval": 4,
        "dcp": 1,
        "groups": [
            {"spec": "sink_window", "block_size": 4, "sinks": 2, "window": 5, "num_kv_heads": 1, "head_size": 4}
            | {"head_size_v": 4, "padded_page_bytes": 100_000},
            {"spec": "mamba", "block_size": 4, "shapes": [[3, 2]], "dtypes": ["int8"]},
        ],
    },
    "steps": [
        {"do": "submit", "request": "r", "tokens": [[0, 9]], "encoder_tokens": 0},
        {"do": "allocate", "request": "r", "new_tokens": 9}
        | {"lookahead": 1, "reserved_blocks": 1, "external_tokens": 0},
        {"do": "in_flight", "request": "r", "tokens": 1},
    ],
}
NUMBERS = [
    (*path, key)
    for path, keys in {
        ("config",): [key for key in SCENARIO["config"] if key != "groups"],
        ("config", "groups", 0): [key for key in SCENARIO["config"]["groups"][0] if key != "spec"],
        ("config", "groups", 1): ["block_size"],
        ("config", "groups", 1, "shapes", 0): [0, 1],
        ("steps", 0): ["encoder_tokens"],
        ("steps", 0, "tokens", 0): [0, 1],
        ("steps", 1): ["new_tokens", "lookahead", "reserved_blocks", "external_tokens"],
        ("steps", 2): ["tokens"],
    }.items()
    for key in keys
]


@pytest.mark.parametrize("path", NUMBERS, ids=str)
def test_an_odd_number_in_a_scenario_is_refused(
    path: tuple[str | int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("in").write_text(json.dumps(SCENARIO))
    assert main(["scenario", "in"]) == 0
    capsys.readouterr()
    for odd in (10**30, float("nan"), float("inf"), 1e300, "x"):
        changed = json.loads(json.dumps(SCENARIO))
        node = changed
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = odd
        Path("in").write_text(json.dumps(changed))
        refused("scenario", capsys)
