"""What is shipped: the wheel has every module and every config, and works where the repository is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGED = ("kvhybrid", "specs", "managers", "models", "conf")

NEEDS_GPU_EXTRA = ("flash_attn", "mamba_ssm", "causal_conv1d")

IMPORT_ALL = """
import pkgutil, sys
sys.path.insert(0, sys.argv[1])
import kvhybrid
for module in pkgutil.walk_packages(kvhybrid.__path__, "kvhybrid."):
    if module.name == "kvhybrid.__main__":
        continue
    try:
        __import__(module.name)
    except ModuleNotFoundError as error:
        if error.name.split(".")[0] not in sys.argv[2:]:
            raise
    else:
        print(module.name, sys.modules[module.name].__file__)
"""

COMMAND_LINE = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from kvhybrid.cli import main
sys.exit(main())
"""


def run(*command: str | Path, cwd: Path) -> str:
    """The stdout of a command that must succeed."""
    result = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the repository ships, so that building leaves nothing behind in it."""
    source = tmp_path_factory.mktemp("source")
    for name in PACKAGED:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    return source


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist that is built from `source`."""
    place = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", place, source, cwd=place)
    (built,) = place.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def unpacked(wheel: Path) -> Path:
    """A folder with nothing but the content of the wheel."""
    folder = wheel.parent / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


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


@pytest.mark.parametrize("suffix", [".py", ".yaml", "py.typed", ".safetensors", "config.json"])
def test_the_wheel_holds_every_file_once(source: Path, wheel: Path, suffix: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = [name for name in archive.namelist() if name.endswith(suffix)]
    assert sorted(held) == shipped(source, suffix)


def test_the_wheel_takes_no_other_name_at_the_top(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {PurePosixPath(name).parts[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"kvhybrid"}


def test_every_module_comes_from_the_wheel(unpacked: Path, tmp_path: Path) -> None:
    lines = run(sys.executable, "-I", "-c", IMPORT_ALL, unpacked, *NEEDS_GPU_EXTRA, cwd=tmp_path).splitlines()
    places = dict(line.split(" ", 1) for line in lines if line.startswith("kvhybrid."))
    assert {f"kvhybrid.{name}" for name in ("specs", "managers", "models", "conf", "engine")} <= set(places)
    assert {name: place for name, place in places.items() if not place.startswith(f"{unpacked}{os.sep}")} == {}


def test_the_command_line_of_the_wheel_knows_the_specs(unpacked: Path, tmp_path: Path) -> None:
    table = run(sys.executable, "-I", "-c", COMMAND_LINE, unpacked, "specs", cwd=tmp_path)
    assert "sliding_window" in table


def test_the_command_line_of_the_wheel_composes_a_run(unpacked: Path, tmp_path: Path) -> None:
    config = run(sys.executable, "-I", "-c", COMMAND_LINE, unpacked, "run", "--cfg", "job", cwd=tmp_path)
    assert "path: gemma3_bytes" in config
