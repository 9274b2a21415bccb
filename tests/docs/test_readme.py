"""What README.md and docs/ say: every command, program, link, spec and metric in them is real."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.stats import StepStats
from kvhybrid.cli import VERBS, main
from kvhybrid.engine.quality import Quality
from kvhybrid.planning import plan_cache
from kvhybrid.planning.memory_meter import MemoryMeter
from kvhybrid.report.summary import RunSummary
from kvhybrid.sessions.recent_rates import RecentRates
from kvhybrid.specs import FullAttentionSpec, registry

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
METRICS_PAGE = (ROOT / "docs" / "read-the-metrics.md").read_text(encoding="utf-8")
QUALITY = Quality(bits=1.0, predicted_tokens=1, tokens=1, bytes=1)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN_PAGES = sorted((ROOT / "runs").glob("*/README.md"))


def blocks(text: str, language: str) -> list[str]:
    """The contents of the fenced blocks in ``language``."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def commands(verb: str) -> list[str]:
    """The arguments of every ``kvhybrid verb …`` line in the shell blocks of README.md."""
    start = f"kvhybrid {verb} "
    lines = [line for block in blocks(README, "sh") for line in block.splitlines()]
    return [line.removeprefix(start) for line in lines if line.startswith(start)]


def first_cells(text: str, heading: str) -> list[str]:
    """What stands in backquotes in the first column of the tables below ``heading``."""
    section = re.split(r"^## ", text, flags=re.MULTILINE)
    (found,) = [part for part in section if part.startswith(f"{heading}\n")]
    return re.findall(r"^\| `([^`]+)` \|", found, flags=re.MULTILINE)


def override_lists(arguments: str, tmp_path: Path) -> list[list[str]]:
    """The override lists of a ``run`` line: one, or one per combination of a sweep. FOLDER is made real."""
    (tmp_path / "config.json").write_text("{}")
    words = [word.replace("FOLDER", str(tmp_path)) for word in shlex.split(arguments) if word != "-m"]
    choices = [
        [f"{key}={value}" for value in values.split(",")] for key, values in (w.split("=", 1) for w in words)
    ]
    return [list(combination) for combination in product(*choices)]


def test_each_setup_command_is_one_line_and_stands_there_once() -> None:
    lines = [line for line in README.splitlines() if line.startswith("python3 -m venv ")]
    assert [line.rsplit("&& ", 1)[1] for line in lines] == [
        ".venv/bin/kvhybrid run",
        ".venv/bin/python -m pytest -n 2",
    ]
    assert all(" -c constraints.txt " in line for line in lines)


@pytest.mark.parametrize("arguments", commands("run"))
def test_every_run_command_composes(arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for overrides in override_lists(arguments, tmp_path):
        assert main(["run", *overrides, "hydra.mode=RUN", "--cfg", "job"]) == 0
        composed = capsys.readouterr().out
        assert "model:" in composed
        assert "workload:" in composed


def test_the_run_commands_are_found() -> None:
    assert len(commands("run")) > 5


@pytest.mark.parametrize("arguments", commands("scenario"))
def test_every_scenario_command_passes(
    arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["scenario", *shlex.split(arguments)]) == 0
    assert " 1 " in capsys.readouterr().out


def small_pool_summary(folder: Path, *overrides: str) -> dict[str, Any]:
    words = ["experiment=small_pool", "tracking=none", f"hydra.run.dir={folder}", *overrides]
    assert main(["run", *words]) == 0
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def test_the_figures_under_the_picture_are_those_of_the_run(tmp_path: Path) -> None:
    (caption,) = re.findall(r"^\*`kvhybrid run experiment=small_pool`:.*?\*$", README, re.MULTILINE | re.DOTALL)
    plain = small_pool_summary(tmp_path / "plain")
    thinned = small_pool_summary(tmp_path / "thinned", "retention=every_n")
    rates = (plain["group/full/own_hit_rate"], plain["hit_rate"], thinned["hit_rate"])
    assert re.findall(r"(\d+) %", caption) == [f"{100 * rate:.0f}" for rate in rates]


def test_every_verb_is_mentioned() -> None:
    assert [verb for verb in VERBS if f"kvhybrid {verb}" not in README] == []


@pytest.mark.parametrize("program", blocks(README, "python"))
def test_every_program_prints_what_its_comments_say(program: str, tmp_path: Path) -> None:
    expected = re.findall(r"^print\(.*\)  # (.*)$", program, flags=re.MULTILINE)
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert expected
    assert result.stdout.splitlines() == expected


@pytest.mark.parametrize("page", [*PAGES, *RUN_PAGES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
    inside = [target for target in targets if not target.startswith("https://")]
    assert [target for target in inside if not (page.parent / target).exists()] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            links = re.findall(r"\]\(([^)#]+\.md)", page.read_text(encoding="utf-8"))
            waiting += [Path(os.path.normpath(page.parent / link)) for link in links if "://" not in link]
    assert set(PAGES) <= reached


def test_the_table_of_specs_is_complete() -> None:
    built_in = {entry.name for entry in registry.entries() if entry.origin == "built in"}
    assert set(first_cells(README, "What a layer can keep")) == built_in


def step_stats() -> StepStats:
    """Every figure that there can be, of a real cache with one group."""
    config = KVCacheConfig((KVCacheGroup("<name>", FullAttentionSpec(block_size=4)),), num_blocks=4)
    cache = KVCacheManager(config, max_model_len=8, track_misses=True).stats()
    numbers: dict[str, Any] = dict.fromkeys(StepStats.__dataclass_fields__, 1)
    return StepStats(**{**numbers, "cache": cache})


def summary_figures() -> set[str]:
    """The names in ``summary.json`` that are not those of the cache."""
    cache = step_stats().cache
    numbers: dict[str, Any] = dict.fromkeys(RunSummary.__dataclass_fields__, 1)
    figures = RunSummary(**{**numbers, "cache": cache, "failures": {}, "memory": {}, "quality": QUALITY}).figures()
    return set(figures) - set(cache.metrics())


def test_the_page_of_metrics_has_every_name_and_no_other() -> None:
    names = re.findall(r"^\| `([^`]+/[^`]+)` \|", METRICS_PAGE, flags=re.MULTILINE)
    plan = plan_cache(
        {"layer": FullAttentionSpec(block_size=4)}, num_blocks=4, max_model_len=8, max_in_flight_tokens=8
    )
    cache, memory = step_stats().cache, MemoryMeter(plan)
    measured = [*RecentRates().add(cache), *memory.add(cache), *memory.figures()]
    assert sorted(names) == sorted([*step_stats().metrics(), *measured, *QUALITY.metrics()])


def test_the_page_of_metrics_has_every_name_of_the_summary() -> None:
    assert set(first_cells(METRICS_PAGE, "The summary")) == summary_figures()
