"""What is shipped: sdist and wheel have every file, and the wheel works where the repository is not."""

from __future__ import annotations

import os
import tarfile
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path, PurePosixPath

import pytest

from tests.installation.place import PACKAGED, Environment, hot_modules, needs_compiler

NEEDS_GPU_EXTRA = ("flash_attn", "mamba_ssm", "causal_conv1d")

IMPORT_ALL = f"""
import pkgutil, sys
import kvhybrid
for module in pkgutil.walk_packages(kvhybrid.__path__, "kvhybrid."):
    if module.name == "kvhybrid.__main__":
        continue
    try:
        __import__(module.name)
    except ModuleNotFoundError as error:
        if error.name.split(".")[0] not in {NEEDS_GPU_EXTRA}:
            raise
    else:
        print(module.name, sys.modules[module.name].__file__)
"""


def shipped(source: Path, suffix: str) -> list[str]:
    """The files of `source` that the wheel must hold, by their names in it."""
    names = [
        (Path(parent) / name).relative_to(source).as_posix()
        for top in PACKAGED
        for parent, _, files in os.walk(source / top)
        for name in files
        if name.endswith(suffix)
    ]
    return sorted(name if name.startswith("kvhybrid/") else f"kvhybrid/{name}" for name in names)


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_sdist_holds_all_of_the_kernel(source: Path, sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        held = {PurePosixPath(name).name for name in archive.getnames() if "/managers/kernel/" in name}
    assert held >= {
        path.name for path in (source / "managers" / "kernel").iterdir() if path.suffix in (".c", ".h")
    }


@pytest.mark.parametrize("suffix", [".py", ".pyi", ".yaml", "py.typed", ".safetensors", "config.json"])
def test_the_wheel_holds_every_file_once(source: Path, wheel: Path, suffix: str) -> None:
    assert sorted(name for name in names_in(wheel) if name.endswith(suffix)) == shipped(source, suffix)


def test_the_wheel_takes_no_other_name_at_the_top(wheel: Path) -> None:
    tops = {PurePosixPath(name).parts[0] for name in names_in(wheel)}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"kvhybrid"}


@needs_compiler
def test_the_wheel_holds_the_kernel_and_the_hot_modules_compiled(wheel: Path) -> None:
    modules = [*hot_modules(), "kvhybrid.managers.kernel._native", "kvhybrid.hot__mypyc"]
    wanted = {name.replace(".", "/") + EXTENSION_SUFFIXES[0] for name in modules}
    assert {name for name in names_in(wheel) if name.endswith(EXTENSION_SUFFIXES[0])} == wanted


def test_every_module_comes_from_the_wheel(installed: Environment, tmp_path: Path) -> None:
    places = dict(line.split(" ", 1) for line in installed.ask(IMPORT_ALL, tmp_path).splitlines())
    assert {f"kvhybrid.{name}" for name in ("specs", "managers", "models", "conf", "engine")} <= set(places)
    elsewhere = {n: place for n, place in places.items() if not place.startswith(f"{installed.folder}{os.sep}")}
    assert elsewhere == {}


def test_the_command_of_the_wheel_knows_the_specs(installed: Environment, tmp_path: Path) -> None:
    assert "sliding_window" in installed.output("kvhybrid", "specs", cwd=tmp_path)


def test_the_command_of_the_wheel_runs_a_model(installed: Environment, tmp_path: Path) -> None:
    overrides = ("tracking=jsonl", "workload=random", "workload.requests=2")
    folder = installed.output("kvhybrid", "run", *overrides, cwd=tmp_path).splitlines()[-1]
    assert (tmp_path / folder / "summary.json").is_file()
