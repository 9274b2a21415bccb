"""docs/plug-ins.md: its table is that of the registries, and one of each kind runs from a distribution outside."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from kvhybrid.hydra_app.parts import PARTS
from kvhybrid.managers.registry import managers
from kvhybrid.models.backends import (
    attention_backends,
    cross_backends,
    gated_delta_backends,
    mamba2_backends,
    mamba_backends,
)
from kvhybrid.models.families import families
from kvhybrid.plugins import Registry, resolve
from kvhybrid.specs import registry as specs

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "plug-ins.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
FILES = {
    text.splitlines()[0].removeprefix("# "): text
    for language, text in BLOCKS
    if language in ("python", "toml", "yaml")
}
COMMANDS = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines()]
TRY, LONG, INSTALL, SPECS, CHECK, RUN, REPLAY = COMMANDS
PIP_OPTIONS = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", "site"]
REGISTRIES: list[Registry[Any]] = [
    specs,
    managers,
    families,
    attention_backends,
    mamba_backends,
    mamba2_backends,
    gated_delta_backends,
    cross_backends,
    *(part.registry for part in PARTS.values()),
]
ONE_OF_EACH = dict(
    re.findall(r'^\[project\.entry-points\."([\w.]+)"\]\n(\w+) = ', FILES["pyproject.toml"], re.MULTILINE)
)
"""The name of the example, by group of entry points."""


def run(command: str, folder: Path, *more: str, installed: bool = True) -> str:
    """The stdout of a command of the page, by this Python; it must succeed."""
    program, *arguments = shlex.split(command)
    if program == "pip":
        arguments = ["install", *PIP_OPTIONS, *arguments[1:]]
    words = [program, *arguments] if program.endswith(".py") else ["-m", program, *arguments]
    path = {"PYTHONPATH": str(folder / "site")} if installed else {}
    result = subprocess.run(
        [sys.executable, *words, *more],
        cwd=folder,
        env={**os.environ, **path, "PYTHONUTF8": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the page."""
    folder = tmp_path_factory.mktemp("written")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def installed(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has the distribution installed below ``site`` and no module beside it."""
    run(INSTALL, written, installed=False)
    folder = tmp_path_factory.mktemp("installed")
    (written / "site").rename(folder / "site")
    (requests,) = (text for language, text in BLOCKS if language == "csv")
    (folder / "requests.csv").write_text(requests)
    return folder


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split(" | ")]


def test_the_table_is_that_of_the_registries() -> None:
    rows = [cells(row) for row in PAGE.splitlines() if row.startswith("| ") and "`kvhybrid." in row]
    stated = {
        (noun, group.strip("`"), base.strip("`")): re.findall(r"`(\w+)`", names)
        for noun, group, base, _, names in rows
    }
    assert stated == {
        (registry.noun, registry.group, registry.base): [
            entry.name for entry in registry.entries() if entry.origin == "built in"
        ]
        for registry in REGISTRIES
    }


def test_every_class_that_is_built_in_is_of_its_kind() -> None:
    for registry in REGISTRIES:
        for name in registry.names():
            assert issubclass(registry.get(name), resolve(registry.base)), f"{registry.noun} {name}"


def test_there_is_one_of_each_kind() -> None:
    in_a_model_of_their_own = {"kvhybrid.mamba_backends", "kvhybrid.mamba2_backends"}
    in_a_model_of_their_own |= {"kvhybrid.gated_delta_backends", "kvhybrid.cross_backends"}
    assert set(ONE_OF_EACH) == {registry.group for registry in REGISTRIES} - in_a_model_of_their_own


def test_a_class_in_the_current_folder_runs(written: Path) -> None:
    folder = Path(run(TRY, written, installed=False).splitlines()[-1])
    config = OmegaConf.load(folder / "config.yaml")
    assert (config.workload.kind, config.workload.requests) == ("repeated:Repeated", 6)
    assert json.loads((folder / "summary.json").read_text())["requests"] == 6


def test_a_file_gives_it_other_values(written: Path) -> None:
    folder = Path(run(LONG, written, installed=False).splitlines()[-1])
    config = OmegaConf.load(folder / "config.yaml")
    assert (config.workload.prompt_tokens, config.workload.requests) == (160, 8)


def test_a_decorator_registers_in_a_program(written: Path) -> None:
    assert re.fullmatch(r"\[\[\d+, \d+\]\]\n", run("registered.py", written, installed=False))


def test_each_is_in_the_help_of_a_verb(installed: Path) -> None:
    listed = (
        run("kvhybrid run --help", installed) + run("kvhybrid replay --help", installed) + run(SPECS, installed)
    )
    for group, name in ONE_OF_EACH.items():
        if group != "kvhybrid.managers":
            assert re.search(rf"^ *{name} .*one-of-each 0\.1\.0", listed, re.MULTILINE), name
    assert re.search(r"^look_back +LookBackManager +one-of-each 0\.1\.0", listed, re.MULTILINE)


def test_the_spec_and_its_manager_keep_the_contract(installed: Path) -> None:
    out = run(CHECK, installed, "--count", "20")
    assert "answers and state equal the generic manager's: 20 scenarios" in out
    assert all(line.startswith("✓") for line in out.splitlines())


def test_a_run_is_made_of_them(installed: Path) -> None:
    folder = Path(run(RUN, installed).splitlines()[-1])
    config = OmegaConf.load(folder / "config.yaml")
    assert config.eviction == {"kind": "most_recent", "spared": 2}
    assert config.retention == {"kind": "system_prompt", "interval": 0, "tokens": 32}
    assert config.layout.kind == "equal_parts"
    assert config.model.model_type == "halved_gemma"
    assert [config[key].kind for key in ("model", "workload", "scheduler")] == [
        "halved_tiny",
        "repeated",
        "shortest_first",
    ]
    summary = json.loads((folder / "summary.json").read_text())
    assert {group["kind"] for group in summary["groups"]} == {"full", "sliding_window"}
    rows = list(csv.DictReader((folder / "figures.csv").open()))
    assert [row["step"] for row in rows] == [str(step + 1) for step in range(summary["steps"])]
    assert {float(row["pool/usage"]) > 0 for row in rows[:-1]} == {True}


def test_a_replay_is_made_of_them(installed: Path) -> None:
    folder = Path(run(REPLAY, installed).splitlines()[-1])
    config = OmegaConf.load(folder / "config.yaml")
    assert [config[key].kind for key in ("trace", "executor", "cost")] == ["csv", "poisson", "per_token"]
    summary = json.loads((folder / "summary.json").read_text())
    assert [group["kind"] for group in summary["groups"]] == ["look_back"]
    assert summary["requests"] == 3
    assert summary["hit_rate"] > 0.3
    assert summary["modelled/seconds"] > 2.0, "the times of the trace do not count"
