"""Completion, as bash runs it: the script that a verb prints, and what is offered for a line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvhybrid.cli import main

SHELL = """
kvhybrid() {{ {python} -m kvhybrid "$@"; }}
source ./script
COMP_LINE='{line}' COMP_POINT={point}
COMP_WORDS=({line}) COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_kvhybrid
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
LINES = {
    "kvhybrid run model=gemma3_": ["model=gemma3_bytes", "model=gemma3_tiny"],
    "kvhybrid replay -m trace.path=FILE pool.num_": ["pool.num_blocks="],
}


@pytest.mark.parametrize("line", LINES)
def test_bash_is_offered_groups_choices_and_keys(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([line.split()[1], "-sc", "install=bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    code = SHELL.format(python=sys.executable, line=line, point=len(line))
    done = subprocess.run(["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert [word.split("=null")[0] for word in done.stdout.split()] == LINES[line]


def test_the_script_can_be_taken_back(capsys: pytest.CaptureFixture[str]) -> None:
    scripts = []
    for command in ("install", "uninstall"):
        assert main(["run", "--shell-completion", f"{command}=bash"]) == 0
        scripts.append(capsys.readouterr().out)
    code = "\n".join([*scripts, "complete -p kvhybrid; declare -F _kvhybrid"])
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert "no completion specification" in done.stderr


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["install=zsh"], "found install=zsh; accepted: install=bash"),
        ([], "found nothing; accepted: install=bash"),
        (["query=bash"], "gives the line to complete as COMP_LINE; found none"),
    ],
)
def test_anything_else_is_one_line(asked: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-sc", *asked]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
