"""What people see, whatever the encoding of the output and whatever the names: plain, and never a crash."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from kvhybrid.cli import VERBS, main
from kvhybrid.console import accept_any_text
from kvhybrid.report.progress import Progress
from kvhybrid.report.table import new_table, print_table

ROOT = Path(__file__).resolve().parents[2]
TRACE = f"trace.path={ROOT / 'tests' / 'kvhybrid' / 'replay' / 'small_trace.jsonl'}"
ODD = "é … [/a/b] [red] :smile: $\\bad$ 中"
NAME = f'name="{ODD}"'
SCENARIO = {
    "id": f"{ODD} \ud800",
    "config": {"num_blocks": 8, "groups": [{"spec": "full", "block_size": 4}]},
    "steps": [
        {"do": "submit", "request": ODD, "tokens": [[0, 9]]},
        {"do": "allocate", "request": ODD, "new_tokens": 9, "expect": {"new_blocks": [[1, 2, 4]]}},
    ],
}
COMMANDS = {
    "run, a sweep": (["run", "-m", "model=gemma3_tiny", "workload=random", "tracking=none", "seed=1", NAME], 0),
    "replay": (["replay", TRACE, "cache=jamba_mini", NAME], 0),
    "specs": (["specs"], 0),
    "check-spec": (["check-spec", "kvhybrid.specs:FullAttentionSpec", "--count", "1"], 0),
    "scenario": (["scenario", "é ….jsonl"], 1),
    "scenario --json": (["scenario", "--json", "é ….jsonl"], 1),
    "scenario --record": (["scenario", "--record", "out.jsonl", "é ….jsonl"], 1),
    "mistake in a config": (["run", 'device="é …"'], 2),
    "mistake in a file name": (["scenario", "no é …"], 2),
    "no such verb": (["é …"], 2),
    **{f"{verb} --help": ([verb, "--help"], 0) for verb in VERBS},
}


class Stream(io.TextIOWrapper):
    """Where a process writes to: a pipe, or a terminal."""

    def __init__(self, encoding: str, errors: str, *, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(), encoding, errors)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    @property
    def text(self) -> str:
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode(self.encoding)


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
@pytest.mark.parametrize("command", COMMANDS)
def test_every_verb_prints_on_every_encoding(
    command: str, encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("é ….jsonl").write_text(json.dumps(SCENARIO))
    out, err = Stream(encoding, "strict"), Stream(encoding, "backslashreplace")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    words, code = COMMANDS[command]
    assert main(words) == code, err.text
    assert "Traceback" not in err.text
    if NAME in words:
        assert {"ascii": "e ... [/a/b] [red] :smile: $\\bad$ ?", "utf-8": ODD}[encoding] in out.text
        assert encoding == "ascii" or f"{ODD}: " in err.text
    if "--json" in words:
        assert json.loads(out.text)["failures"][0]["id"] == SCENARIO["id"]
    if "--record" in words:
        assert json.loads(Path("out.jsonl").read_text(encoding="utf-8"))["id"] == SCENARIO["id"]


def test_what_an_encoding_has_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", out := Stream("latin-1", "strict"))
    accept_any_text()
    print("é × …")
    assert out.text == "é × ...\n"


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_terminal_shows_names_as_they_are(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    err = Stream(encoding, "backslashreplace", terminal=True)
    monkeypatch.setattr(sys, "stderr", err)
    with Progress("run [/a/b] [red] :smile:", 3):
        pass
    assert "run [/a/b] [red] :smile:" in err.text


def test_a_stream_that_is_no_text_file_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    accept_any_text()
    print("é …")


@pytest.mark.parametrize("columns", ["40", "200"])
def test_a_terminal_that_is_too_narrow_for_a_table_shows_all_figures(
    columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Stream("utf-8", "strict", terminal=True)
    monkeypatch.setattr(sys, "stdout", out)
    for key, value in (("COLUMNS", columns), ("TERM", "xterm")):
        monkeypatch.setenv(key, value)
    table = new_table("groups", ["group"], ["bytes a\npage", "padding a\nblock", "blocks of a\nrequest"])
    table.add_row("sliding_window.0", "1,310,720", "262,144", "8,192")
    print_table(table)
    for figure in ("1,310,720", "262,144", "8,192"):
        assert figure in out.text
    assert ("- group                sliding_window.0" in out.text) == (columns == "40")
