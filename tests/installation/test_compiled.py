"""Compiled or not, it is the same kvhybrid: the installed wheel passes the tests that the sources pass."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.installation.place import ROOT, Environment, hot_modules, needs_compiler

pytestmark = needs_compiler

FORM = f"""
from importlib import import_module
from kvhybrid import is_compiled
from kvhybrid.managers.kernel import is_native
kinds = {{import_module(name).__file__.rsplit(".", 1)[1] for name in {hot_modules()}}}
print(is_compiled, is_native, "py" in kinds)
"""

PYTEST = """
import sys
import kvhybrid
import pytest
assert kvhybrid.is_compiled
sys.exit(pytest.main(["-p", "no:cacheprovider", *sys.argv[1:]]))
"""


@pytest.fixture(scope="module")
def tests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tests and their configuration, and no sources beside them."""
    folder = tmp_path_factory.mktemp("tests_alone")
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_the_hot_modules_and_the_kernel_are_compiled(installed: Environment, tmp_path: Path) -> None:
    assert installed.ask(FORM, tmp_path) == "True True False"


@pytest.mark.parametrize("part", ["kvhybrid/cache", "kvhybrid/scenarios", "kvhybrid/scheduling", "managers"])
def test_the_wheel_passes_the_tests(part: str, installed: Environment, tests: Path) -> None:
    counts_bytecode = "--ignore=tests/kvhybrid/cache/test_cost.py"
    out = installed.output("python", "-c", PYTEST, f"tests/{part}", counts_bytecode, cwd=tests)
    assert " passed" in out
    assert "skipped" not in out
