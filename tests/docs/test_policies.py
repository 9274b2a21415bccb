"""``docs/policies.md``: its commands run, on a small trace. The index of orders lists all of them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kvhybrid.cli import main
from kvhybrid.managers.eviction import orders

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
INDEX = (ROOT / "managers" / "eviction" / "README.md").read_text(encoding="utf-8")
TRACE = ROOT / "tests" / "kvhybrid" / "replay" / "small_trace.jsonl"
COMMANDS = re.findall(r"^kvhybrid (.*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_runs(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.jsonl").write_text(TRACE.read_text(encoding="utf-8"), encoding="utf-8")
    assert main(shlex.split(command)) == 0


def test_the_commands_are_found() -> None:
    assert [command.split()[0] for command in COMMANDS] == ["replay", "run"]


def test_the_index_links_every_built_in_order_to_its_file() -> None:
    listed = re.findall(r"^\| `(\w+)`.*\((\w+)\.py\)", INDEX, re.MULTILINE)
    assert [name for name, _ in listed] == [file for _, file in listed]
    assert sorted(name for name, _ in listed) == sorted(
        path.stem for path in (ROOT / "conf/eviction").glob("*.yaml")
    )
    assert all(orders.get(name) for name, _ in listed)
