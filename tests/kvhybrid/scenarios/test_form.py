"""A malformed scenario ends in one line that names the place, the key, what was found and what is accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvhybrid.cli import main

CONFIG = {"num_blocks": 8, "groups": [{"spec": "full", "block_size": 4}]}
SUBMIT = {"do": "submit", "request": "a", "tokens": [[0, 9]]}
ADMIT = {"do": "allocate", "request": "a", "new_tokens": 9}
FREE = {"do": "free", "request": "a"}
SEARCH = {"kind": "hit_search", "config": CONFIG, "cached": [], "max_length": 8, "expect": {"hit_tokens": 0}}


def said(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the verb says about a file with a mistake: one line, exit code 2 and no output."""
    assert main(["scenario", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def write(path: Path, *contents: Any) -> Path:
    path.write_text("".join(json.dumps(content) + "\n" for content in contents))
    return path


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([{**SUBMIT, "tokenz": 1}], ["step 0 (submit)", "'tokenz'", "tokens"]),
        ([{"do": "submit", "request": "a"}], ["'tokens' is missing"]),
        ([{**SUBMIT, "tokens": [[0, -3]]}], ["tokens = [[0, -3]]", "[[first, count], …]"]),
        ([{**SUBMIT, "tokens": [[0, 0]]}], ["tokens = [[0, 0]]", "at least one token"]),
        ([{**SUBMIT, "tokens": [[0, 10**12]]}], ["tokens = "]),
        ([{**SUBMIT, "tokens": "ab"}], ["tokens = 'ab'"]),
        ([{**SUBMIT, "lora": ["x"]}], ['lora = ["x"]', "[name, path]"]),
        ([{**SUBMIT, "skip_read": 1}], ["skip_read = 1", "true or false"]),
        ([{**SUBMIT, "request": ""}], ["request = ''"]),
        ([{"do": "fly"}], ["step 0", "do = 'fly'", "submit, lookup"]),
        (["fly"], ["step 0", "'fly'"]),
        ([{"do": ["submit"]}], ["step 0", 'do = ["submit"]']),
        ([SUBMIT, SUBMIT], ["step 1 (submit)", "'a' was submitted before"]),
        ([{"do": "lookup", "request": "z"}], ["step 0 (lookup)", "'z' was not submitted"]),
        ([SUBMIT, ADMIT, {"do": "lookup", "request": "a"}], ["step 2 (lookup)", "9 computed tokens"]),
        ([SUBMIT, {**ADMIT, "lookahead": -1}], ["lookahead = -1", "from 0"]),
        ([SUBMIT, {"do": "allocate", "request": "a"}], ["'new_tokens' is missing"]),
        ([SUBMIT, ADMIT, {"do": "reject", "request": "a", "tokens": 10}], ["tokens = 10", "at most the 9"]),
        ([SUBMIT, {"do": "reject", "request": "a", "tokens": True}], ["tokens = true"]),
        ([SUBMIT, {"do": "load_done", "request": "a"}], ["'a' is waiting", "one that loads"]),
        ([SUBMIT, FREE, FREE], ["step 2 (free)", "'a' has ended"]),
        ([{"do": "evict", "blocks": [8]}], ["blocks = 8", "0 to 7"]),
        ([{"do": "evict", "blocks": ["1"]}], ['blocks = ["1"]']),
        ([{"do": "reset", "request": "a"}], ["step 0 (reset)", "'request'"]),
        ([{"do": "state", "expect": {"free": 1}}], ["step 0 (state), expect", "'free'", "free_queue"]),
        ([{"do": "new_step", "expect": {"ok": True}}], ["unknown key 'ok'", "no key"]),
        ([SUBMIT, {**ADMIT, "expect": {"refused": False}}], ["refused = false", "true"]),
    ],
)
def test_a_step_that_makes_no_sense(
    steps: list[Any], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "x.jsonl", {"id": "x", "config": CONFIG, "steps": steps})
    message = said(path, capsys)
    for word in (f"{path}, line 1", *words):
        assert word in message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_blocks": 0}, ["num_blocks = 0", "from 1"]),
        ({"num_blocks": "8"}, ["num_blocks = '8'"]),
        ({"num_block": 8}, ["unknown key 'num_block'", "num_blocks, groups"]),
        ({"groups": []}, ["groups"]),
        ({"groups": [3]}, ["groups[0] = 3"]),
        ({"groups": [{"block_size": 4}]}, ["groups[0]", "'spec' is missing"]),
        ({"groups": [{"spec": "sliding_window", "block_size": 4}]}, ["groups[0]", "'window' is missing"]),
        ({"groups": [{"spec": "full", "block_size": 4, "window": 4}]}, ["unknown key 'window'"]),
        ({"groups": [{"spec": "full", "block_size": -4}]}, ["block_size = -4"]),
        ({"groups": [{"spec": "mamba", "block_size": 4, "mode": "all"}]}, ["mode = 'all'", "align, none"]),
        ({"groups": [{"spec": "mamba", "block_size": 4, "mode": {}}]}, ["mode = {}", "align, none"]),
        ({"groups": [{"spec": ["full"], "block_size": 4}]}, ['spec = ["full"]', "full, mamba"]),
        ({"watermark": 1.5}, ["watermark = 1.5"]),
        ({"watermark": "x"}, ["watermark = 'x'", "a number"]),
        ({"eagle": [1]}, ["eagle = [1]", "indices"]),
        ({"eagle": True}, ["eagle = true", "false or a list"]),
        ({"dcp": 0}, ["dcp = 0"]),
        ({"hash_block_size": 3}, ["hash_block_size = 3"]),
        ({"retention_interval": 3}, ["retention_interval = 3"]),
    ],
)
def test_a_config_that_cannot_be_built(
    change: dict[str, Any], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "x.jsonl", {"id": "x", "config": {**CONFIG, **change}, "steps": []})
    message = said(path, capsys)
    for word in (f"{path}, line 1", *words):
        assert word in message


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"group": 0, "pattern": "10x"}, ["cached[0]", "pattern = '10x'", "0 and 1"]),
        ({"group": 0, "pattern": "1" * 51}, ["cached[0]", "1 to 50"]),
        ({"group": 1, "pattern": "1"}, ["cached[0]", "group = 1", "0 to 0"]),
        ({"group": 0, "pattern": "1", "unit": 3}, ["cached[0]", "unit = 3", "hash unit 4"]),
        ({"pattern": "1"}, ["'group' is missing"]),
    ],
)
def test_an_entry_of_a_hit_search_that_fits_no_key(
    entry: dict[str, Any], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = said(write(tmp_path / "x.jsonl", {"id": "x", **SEARCH, "cached": [entry]}), capsys)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"{", ["line 1", "not JSON"]),
        (b"\n[1]\n", ["line 2", "an object"]),
        (b"[" * 100_000, ["line 1", "not JSON"]),
        (b"\xff", ["UTF-8"]),
        (b'{"config": {}, "steps": []}', ["'id' is missing"]),
        (b'{"id": "x", "steps": []}', ["'config' is missing"]),
        (b'{"id": "x", "config": 3, "steps": []}', ["config = 3"]),
        (b'{"id": "x", "kind": [], "config": {}, "steps": []}', ["kind = []", "hit_search"]),
        (b'{"id": "x", "config": {}, "steps": [], "stepz": 1}', ["unknown key 'stepz'"]),
        (b'{"id": "x", "kind": "config", "config": {}, "expect": {}}', ["expect", "'valid' is missing"]),
    ],
)
def test_a_line_that_is_no_scenario(
    text: bytes, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(text)
    message = said(path, capsys)
    for word in (str(path), *words):
        assert word in message


def test_two_scenarios_of_one_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = {"id": "x", "config": CONFIG, "steps": []}
    message = said(write(tmp_path / "x.jsonl", one, one), capsys)
    assert "line 2" in message
    assert "line 1" in message


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing.jsonl: No such file" in said(tmp_path / "nothing.jsonl", capsys)
