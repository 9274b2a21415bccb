"""The command line: verbs, help, and what a mistake costs."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from kvhybrid.cli import VERBS, main
from kvhybrid.specs import registry
from tests.kvhybrid.distributions import write_distribution

HEAVY = ("torch", "transformers", "wandb", "hydra", "omegaconf", "matplotlib", "numpy", "rich")


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_names_every_verb(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    for name, verb in VERBS.items():
        assert f"{name} " in printed
        assert verb.summary in printed


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_of_its_own(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(import_module(VERBS[verb].module).main)
    assert main([verb, "--help"]) == 0
    assert f"usage: kvhybrid {verb}" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["nonsense"]])
def test_help_and_mistakes_load_nothing_heavy(arguments: list[str]) -> None:
    done = python(
        f"import sys, kvhybrid.cli as cli; cli.main({arguments}); "
        f"found = [m for m in {HEAVY} if m in sys.modules]; assert not found, found"
    )
    assert done.returncode == 0, done.stderr


def test_specs_loads_no_torch() -> None:
    done = python(
        "import sys, kvhybrid.cli as cli; assert cli.main(['specs']) == 0; assert 'torch' not in sys.modules"
    )
    assert done.returncode == 0, done.stderr


def test_an_unknown_verb_is_one_line_that_names_the_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rnu"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert "'rnu'" in line
    assert all(verb in line for verb in VERBS)


def test_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    name, number = capsys.readouterr().out.split()
    assert name == "kvhybrid"
    assert number[0].isdigit()


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "kvhybrid", "rnu"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_specs_lists_every_registered_spec(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["specs"]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split() == ["spec", "manager", "origin", "live", "set"]
    assert [row.split()[0] for row in rows] == list(registry.names())
    (window,) = [row for row in rows if row.startswith("sliding_window")]
    assert "SlidingWindowManager" in window
    assert "built in" in window
    assert "live(p) = [max(0, p - window + 1), p)" in window


def test_specs_takes_no_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["specs", "full"]) == 2
    assert capsys.readouterr().err == "kvhybrid specs: takes no arguments, found 'full'\n"


def test_a_broken_spec_of_another_distribution_is_a_warning(tmp_path: Path) -> None:
    points = {"kvhybrid.specs": "broken = no_such_module:Spec\nfull = collections:OrderedDict"}
    write_distribution(tmp_path, "broken-plugin", {}, points)
    done = subprocess.run(
        [sys.executable, "-m", "kvhybrid", "specs"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == list(registry.names())
    taken, broken = done.stderr.splitlines()
    assert "spec name 'full' is taken by kvhybrid.specs.full:FullAttentionSpec (built in)" in taken
    assert broken == (
        "spec 'broken' (no_such_module:Spec, broken-plugin 1.0) cannot be loaded: No module named 'no_such_module'"
    )
