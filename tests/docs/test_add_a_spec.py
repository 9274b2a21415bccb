"""docs/add-a-spec.md: its files are written, its commands are run, and they print what the page says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "add-a-spec.md").read_text(encoding="utf-8")
PIP_OPTIONS = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", "site"]


class Block(NamedTuple):
    language: str
    text: str


BLOCKS = [Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]
FILES = {
    block.text.splitlines()[0].removeprefix("# "): block.text
    for block in BLOCKS
    if block.language in ("python", "toml")
}
COMMANDS = [line for block in BLOCKS if block.language == "sh" for line in block.text.splitlines()]
PRINTED = [block.text.splitlines() for block in BLOCKS if block.language == "text"]


def run(command: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """A command of the page, by this Python."""
    program, *arguments = shlex.split(command)
    if program == "pip":
        arguments = ["install", *PIP_OPTIONS, *arguments[1:]]
    return subprocess.run(
        [sys.executable, "-m", program, *arguments, *more],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": "site", "PYTHONUTF8": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def without_numbers(lines: list[str]) -> list[str]:
    """How many scenarios, calls and hits there are depends on ``--count``."""
    return [re.sub(r"[\d,]*\d", "N", line) for line in lines]


def test_the_page_is_understood() -> None:
    assert list(FILES) == ["landmarks.py", "dilated.py", "pyproject.toml"]
    assert len(COMMANDS) == 6
    assert len(PRINTED) == 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_the_first_spec_passes_as_shown(folder: Path) -> None:
    result = run(COMMANDS[0], folder, "--count", "30")
    assert result.returncode == 0, result.stdout + result.stderr
    assert without_numbers(result.stdout.splitlines()) == without_numbers(PRINTED[0])


def test_the_dilated_window_fails_as_shown(folder: Path) -> None:
    result = run(COMMANDS[1], folder)
    assert result.returncode == 1
    assert result.stdout.splitlines()[:1] == PRINTED[1]


def test_the_shipped_spec_is_registered_by_its_entry_point(folder: Path) -> None:
    install, specs, check, _ = COMMANDS[2:]
    installed = run(install, folder)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    assert "landmarks 0.1.0" in run(specs, folder).stdout
    result = run(check, folder, "--count", "5")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "registered as 'landmark_window'" in result.stdout
