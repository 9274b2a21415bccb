"""``docs/plan.md`` and README: every plan command runs, on a small model where the page says FOLDER."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from kvhybrid.cli import main
from kvhybrid.settings.model_config import preset_names

ROOT = Path(__file__).resolve().parents[2]
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/plan.md")}
COMMANDS = [
    (name, line)
    for name, text in PAGES.items()
    for line in re.findall(r"^kvhybrid plan (.*)$", text, re.MULTILINE)
]
SMALL = {"model_type": "qwen3", "num_hidden_layers": 2, "vocab_size": 64, "max_position_embeddings": 40960}


@pytest.mark.parametrize(("page", "arguments"), COMMANDS)
def test_every_command_runs(
    page: str,
    arguments: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    assert main(["plan", *shlex.split(arguments.replace("FOLDER", str(tmp_path)))]) == 0
    assert capsys.readouterr().out


def test_the_commands_are_found() -> None:
    assert len(COMMANDS) > 6


def test_the_number_of_presets_is_right() -> None:
    assert f"one of {len(preset_names())} presets" in PAGES["README.md"]
