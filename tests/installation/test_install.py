"""``pip install .`` and ``pip install -e .``: which form runs, from where, and what a broken clone is told."""

from __future__ import annotations

import shlex
import sys
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from kvhybrid import is_compiled
from runs.speed.worker import Worker, WorkerProcess
from runs.speed.works import Size
from tests.installation.place import ROOT, Environment, c_compiler, copy_source, hot_modules, needs_compiler

WHERE = "import kvhybrid; print(kvhybrid.__file__)"
FORM = """
from kvhybrid import is_compiled
from kvhybrid.managers.kernel import is_native
print(is_compiled, is_native)
"""


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment.create(tmp_path / "environment")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    return copy_source(tmp_path / "clone")


def leave_extensions(folder: Path) -> list[Path]:
    """Files that an earlier build has left below `folder`. Python would import them, not the sources."""
    names = [*hot_modules(), "kvhybrid.hot__mypyc", "kvhybrid.managers.kernel._native"]
    left = [folder / (name.replace(".", "/") + EXTENSION_SUFFIXES[0]) for name in names]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"of an earlier build")
    return left


def test_nothing_compiled_hides_the_sources_of_this_clone() -> None:
    assert not is_compiled, (
        "an earlier build has left extensions beside the sources: pip install -e . removes them"
    )


@needs_compiler
def test_an_edited_file_of_an_editable_install_is_what_runs(
    clone: Path, environment: Environment, tmp_path: Path
) -> None:
    leave_extensions(clone)
    installed = environment.install("-e", clone, cwd=tmp_path)
    assert installed.returncode == 0, installed.stdout
    assert environment.ask(FORM, tmp_path) == "False True", "the sources, with the kernel in C"
    for name in hot_modules():
        with (clone / (name.replace(".", "/") + ".py")).open("a", encoding="utf-8") as file:
            file.write("\nEDITED = True\n")
    edited = f"from importlib import import_module; print(all(import_module(m).EDITED for m in {hot_modules()}))"
    assert environment.ask(edited, tmp_path) == "True"


@pytest.mark.parametrize("how", [(), ("-e",)])
def test_without_a_compiler_everything_runs_as_python(
    how: tuple[str, ...], clone: Path, environment: Environment, tmp_path: Path
) -> None:
    platform = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    leave_extensions(clone if how else clone / "build" / f"lib.{platform}")
    installed = environment.install(*how, clone, cwd=tmp_path, CC="false")
    assert installed.returncode == 0, installed.stdout
    assert environment.ask(FORM, tmp_path) == "False False"
    scenarios = (ROOT / "tests" / "scenarios").glob("*.jsonl")
    assert environment.output("kvhybrid", "scenario", *scenarios, cwd=tmp_path)


@needs_compiler
def test_hot_modules_are_compiled_together_or_not_at_all(
    clone: Path, environment: Environment, tmp_path: Path
) -> None:
    """Here what they share does not compile, and what is left of each of them does."""
    compiler = tmp_path / "compiler"
    real = shlex.join(c_compiler())
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *__native_hot*) exit 1;; esac\nexec {real} "$@" -O0\n')
    compiler.chmod(0o755)
    installed = environment.install(clone, cwd=tmp_path, CC=str(compiler))
    assert installed.returncode == 0, installed.stdout
    assert environment.ask(FORM, tmp_path) == "False True"


@pytest.mark.parametrize("how", [(), ("-e",)])
def test_links_that_arrived_as_text_are_named_with_what_to_do(
    how: tuple[str, ...], clone: Path, environment: Environment, tmp_path: Path
) -> None:
    for folder in ("managers", "conf"):
        (clone / "kvhybrid" / folder).unlink()
        (clone / "kvhybrid" / folder).write_text(f"../{folder}")
    refused = environment.install(*how, clone, cwd=tmp_path)
    assert refused.returncode != 0
    (said,) = [line for line in refused.stdout.splitlines() if "kvhybrid cannot be installed" in line]
    assert "kvhybrid/managers, kvhybrid/conf must be symbolic links" in said
    assert "core.symlinks=true" in said
    assert "Traceback" not in refused.stdout


def test_in_a_clone_the_command_runs_what_is_installed_and_python_what_lies_there(
    installed: Environment, tmp_path: Path
) -> None:
    (tmp_path / "kvhybrid").mkdir()
    (tmp_path / "kvhybrid" / "__init__.py").touch()
    assert "sliding_window" in installed.output("kvhybrid", "specs", cwd=tmp_path)
    assert installed.ask(WHERE, tmp_path) == str(tmp_path / "kvhybrid" / "__init__.py")


@needs_compiler
def test_the_speed_benchmark_measures_what_is_installed(installed: Environment) -> None:
    process = WorkerProcess("the wheel", "ours", str(installed.folder / "bin" / "python"))
    process.wait()
    worker = Worker("ours", process)
    worker.open("c:1", Size(requests=1))
    process.end()
    assert "(compiled)" in worker.version
