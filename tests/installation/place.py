"""Copies of the repository to build from, and virtual environments to install into."""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGED = ("kvhybrid", "specs", "managers", "models", "conf")
"""The folders that are shipped: the package, and those that it links to."""


def hot_modules() -> list[str]:
    """The modules that setup.py has compiled."""
    for node in ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "HOT":
            packages: dict[str, tuple[str, ...]] = ast.literal_eval(node.value)
            return [f"{package}.{name}" for package, names in packages.items() for name in names]
    raise AssertionError("setup.py has no HOT")


def copy_source(place: Path) -> Path:
    """What a clone has to build from. Nothing that an earlier build left in this one comes along."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd", "*.egg-info")
    for name in PACKAGED:
        shutil.copytree(ROOT / name, place / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place)
    return place


def c_compiler() -> list[str]:
    """The command that setuptools compiles with."""
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


def has_compiler() -> bool:
    """Whether an extension of Python can be compiled here."""
    command = [*c_compiler(), f"-I{sysconfig.get_path('include')}", "-fsyntax-only", "-x", "c", "-"]
    try:
        return subprocess.run(command, input=b"#include <Python.h>\n", capture_output=True).returncode == 0
    except OSError:
        return False


needs_compiler = pytest.mark.skipif(not has_compiler(), reason="no C compiler with Python's headers")


def run(*command: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command without what this run of pytest has put into the environment; its output is one text."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHONPATH", "PYTEST_"))}
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**inherited, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )


@dataclass(frozen=True)
class Environment:
    """A virtual environment that borrows the packages of this one, but not an editable kvhybrid."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> Environment:
        assert run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent).returncode == 0
        borrowed = [place for place in sys.path if Path(place).name in ("site-packages", "dist-packages")]
        (own,) = folder.glob("lib/python*/site-packages")
        (own / "borrowed.pth").write_text("\n".join(borrowed))
        return cls(folder)

    def install(self, *what: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """``pip install`` with the borrowed build tools, and without dependencies."""
        # What is borrowed must neither satisfy pip nor be uninstalled.
        options = ("--no-index", "--no-deps", "--no-build-isolation", "--ignore-installed")
        return run(self.folder / "bin" / "python", "-m", "pip", "install", *options, *what, cwd=cwd, **variables)

    def output(self, command: str, *arguments: str | Path, cwd: Path) -> str:
        """What a command of this environment prints. It must succeed."""
        result = run(self.folder / "bin" / command, *arguments, cwd=cwd)
        assert result.returncode == 0, result.stdout
        return result.stdout.strip()

    def ask(self, code: str, cwd: Path) -> str:
        """What a Python program prints."""
        return self.output("python", "-c", code, cwd=cwd)
