"""Compiled or not, it is the same kvhybrid: which form runs, and that the sources stay in charge."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import kvhybrid
from kvhybrid.compiled import MANIFEST, is_compiled

PACKAGE = Path(kvhybrid.__file__).parent
TESTS = Path(__file__).parents[1]
HOT = [line.split()[0] for line in Path(MANIFEST).read_text().splitlines()[1:]] if is_compiled else []

needs_compiled = pytest.mark.skipif(not is_compiled, reason="kvhybrid is not compiled here")

FORM = """
import sys
from importlib import import_module
from kvhybrid.compiled import is_compiled
print(is_compiled, *sorted({import_module(name).__file__.rsplit(".", 1)[1] for name in sys.argv[1:]}))
"""


def python(*arguments: str, at: Path = PACKAGE.parent, compiled: str = "") -> str:
    run = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(at), "KVHYBRID_COMPILED": compiled},
        capture_output=True,
        text=True,
        cwd=at,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout.strip()


@needs_compiled
def test_all_that_is_compiled_runs_compiled() -> None:
    assert {Path(import_module(name).__file__ or "").suffix for name in HOT} == {".so"}
    assert "kvhybrid.cache.manager" in HOT


@needs_compiled
def test_the_environment_chooses_the_sources() -> None:
    assert python("-c", FORM, *HOT) == "True so"
    assert python("-c", FORM, *HOT, compiled="0") == "False py"


@needs_compiled
def test_a_changed_source_is_what_runs(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "kvhybrid", ignore=shutil.ignore_patterns("weights", "__pycache__"))
    for shared in PACKAGE.parent.glob("kvhybrid__mypyc.*"):
        shutil.copy(shared, tmp_path)
    assert python("-c", FORM, *HOT, at=tmp_path) == "True so"
    source = tmp_path / "kvhybrid" / "managers" / "table.py"
    before = source.read_text()
    source.write_text(before + "\nCHANGED = True\n")
    assert python("-c", FORM, *HOT, at=tmp_path) == "False py"
    see = "from kvhybrid.managers import table; print(table.CHANGED)"
    assert python("-c", see, at=tmp_path) == "True"
    source.write_text(before)
    assert python("-c", FORM, *HOT, at=tmp_path) == "True so", "nothing but the text counts"
    (shared,) = tmp_path.glob("kvhybrid__mypyc.*")
    shared.rename(tmp_path / "elsewhere")
    assert python("-c", FORM, *HOT, at=tmp_path) == "False py", "what all of them load is not there"
    (tmp_path / "elsewhere").rename(shared)
    manifest = tmp_path / "kvhybrid" / "compiled.txt"
    manifest.write_text(manifest.read_text().replace(EXTENSION_SUFFIXES[0], ".cpython-309-x86_64-linux-gnu.so"))
    assert python("-c", FORM, *HOT, at=tmp_path) == "False py", "compiled for another Python"
    manifest.unlink()
    assert python("-c", FORM, *HOT, at=tmp_path) == "False py", "a build that did not end well"


@needs_compiled
@pytest.mark.parametrize(
    "tests",
    [
        "kvhybrid/cache/test_cost.py",
        "kvhybrid/cache/test_manager.py",
        "kvhybrid/scenarios/test_project_files.py",
        "runs/test_speed.py::test_a_profile_shares_the_time_out_among_the_layers",
    ],
)
def test_the_sources_pass_the_same_tests(tests: str) -> None:
    out = python("-m", "pytest", "-p", "no:cacheprovider", str(TESTS / tests), at=TESTS.parent, compiled="0")
    assert " passed" in out
    assert "skipped" not in out
