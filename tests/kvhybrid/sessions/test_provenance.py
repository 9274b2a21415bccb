"""``config.yaml`` of a run runs again, and ``provenance.json`` says what the run was and what it ran on."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

import pytest
from omegaconf import OmegaConf

from kvhybrid.cli import main
from kvhybrid.managers.eviction.base import BlockInfo
from kvhybrid.managers.eviction.lru import LRU
from kvhybrid.replay.arrivals import OpenLoop
from kvhybrid.replay.layers import CacheSettings, LayerSettings
from kvhybrid.replay.mooncake import MooncakeTrace
from kvhybrid.sessions.provenance import commit_of
from kvhybrid.sessions.replay import replay
from kvhybrid.sessions.replay_settings import ReplaySettings
from kvhybrid.sessions.run import run
from kvhybrid.sessions.run_settings import RunSettings
from kvhybrid.settings.cache import EvictionSettings
from kvhybrid.settings.model import JambaSettings
from kvhybrid.tracking.jsonl import JsonLinesTracker
from kvhybrid.workloads.random import Random


class Half(LRU):
    """An order with a parameter of its own."""

    def __init__(self, blocks: BlockInfo, share: float = 0.5) -> None:
        super().__init__(blocks)


class Kept(JsonLinesTracker):
    """A tracker that no config names; its file has another name than the other's."""

    def __init__(self, file: str = "kept.jsonl") -> None:
        super().__init__(file=file)


SMALL = Path(__file__).parents[1] / "replay" / "small_trace.jsonl"
TIMED = ("seconds", "tokens_per_second", "requests_per_second", "overrides")
RUN = ["workload=random", "workload.requests=3", "workload.max_new_tokens=2", "tracking=jsonl"]


def content(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name).read_text())
    return found


def figures(folder: Path) -> Mapping[str, Any]:
    return {name: value for name, value in content(folder, "summary.json").items() if name not in TIMED}


def again(verb: str, folder: Path, *overrides: str) -> int:
    """Start the run in ``folder`` again, from its config alone, in a folder ``again`` beside it."""
    beside = f"hydra.run.dir={folder.parent / 'again'}"
    return main([verb, "--config-dir", str(folder), "--config-name", "config", *overrides, beside])


REPLAY = ["replay", f"trace.path={SMALL}", "trace.limit=12"]


@pytest.mark.parametrize(
    "words",
    [
        [*REPLAY, "cache=custom", "cache.layers=[{spec: full, count: 2}]", "pool=blocks"],
        [*REPLAY, "cache=jamba_mini", "executor=open_loop", "name='1e3: on # \"ä\"'"],
        ["run", "model=jamba_tiny", *RUN, "seed=7", "backends.mamba=auto"],
        [
            *REPLAY,
            f"eviction={__name__}:Half",
            "eviction.share=0.25",
            f"+tracking.kept.kind={__name__}:Kept",
        ],
        ["run", "experiment=small_pool", *RUN, "tracking.jsonl.file=steps.jsonl", "retention=every_n"],
    ],
    ids=["lists", "text", "choices", "plug-ins", "experiment"],
)
def test_a_run_starts_again_from_its_folder(words: list[str], tmp_path: Path) -> None:
    verb, *overrides = words
    first = tmp_path / "first"
    assert main([verb, *overrides, f"hydra.run.dir={first}"]) == 0
    assert again(verb, first) == 0
    assert figures(tmp_path / "again") == figures(first)
    assert (tmp_path / "again" / "config.yaml").read_text() == (first / "config.yaml").read_text()
    assert {place.name for place in (tmp_path / "again").iterdir()} == {place.name for place in first.iterdir()}


def test_a_part_of_your_own_needs_no_config_of_your_own_the_second_time(tmp_path: Path) -> None:
    conf = tmp_path / "conf" / "executor"
    conf.mkdir(parents=True)
    (conf / "mine.yaml").write_text("kind: kvhybrid.replay.arrivals:OpenLoop\ntime_scale: 0.5\n")
    words = ["--config-dir", str(conf.parent), f"trace.path={SMALL}", "executor=mine"]
    assert main(["replay", *words, f"hydra.run.dir={tmp_path / 'first'}"]) == 0
    assert again("replay", tmp_path / "first") == 0
    assert figures(tmp_path / "again") == figures(tmp_path / "first")


def test_the_second_time_values_can_be_changed_and_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"trace.path={SMALL}", "trace.limit=5", f"hydra.run.dir={tmp_path / 'first'}"]
    assert main(["replay", *words]) == 0
    capsys.readouterr()
    assert again("replay", tmp_path / "first", "trace.limit=many") == 2
    assert capsys.readouterr().err == ("kvhybrid replay: trace.limit must be a whole number or null, found many\n")
    assert again("replay", tmp_path / "first", "trace.limit=6") == 0
    assert figures(tmp_path / "again")["requests"] == 6


def test_the_second_time_it_can_be_swept_and_lies_where_runs_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["replay", f"trace.path={SMALL}", "trace.limit=5", "hydra.run.dir=first"]) == 0
    assert main(["replay", "--config-dir", "first", "--config-name", "config", "-m", "trace.limit=2,3"]) == 0
    (sweep,) = (tmp_path / "runs" / "outputs" / "replay" / "sweeps").iterdir()
    assert [job["requests"] for job in content(sweep, "sweep.json")["jobs"]] == [2, 3]


def test_a_run_from_python_starts_again_on_the_command_line(tmp_path: Path) -> None:
    settings = RunSettings(
        model=JambaSettings(cpu_threads=1, seed=3),
        workload=Random(requests=3, max_new_tokens=2),
        eviction=EvictionSettings(kind=f"{__name__}:Half", parameters={"share": 0.25}),
        tracking={"jsonl": JsonLinesTracker(file="steps.jsonl")},
    )
    run(settings, tmp_path / "first")
    assert again("run", tmp_path / "first") == 0
    assert figures(tmp_path / "again") == figures(tmp_path / "first")
    assert (tmp_path / "again" / "steps.jsonl").exists()
    chosen = OmegaConf.load(tmp_path / "again" / "config.yaml").eviction
    assert chosen == {"kind": f"{__name__}:Half", "share": 0.25}


def test_a_replay_from_python_starts_again_on_the_command_line(tmp_path: Path) -> None:
    settings = ReplaySettings(
        trace=MooncakeTrace(path=str(SMALL)),
        executor=OpenLoop(time_scale=0.5),
        cache=CacheSettings(layers=[LayerSettings(spec="full", fields={"head_size": 64})]),
    )
    settings.pool.num_blocks = 1000
    replay(settings, tmp_path / "first")
    assert again("replay", tmp_path / "first") == 0
    assert figures(tmp_path / "again") == figures(tmp_path / "first")


def test_provenance_has_choices_overrides_versions_and_backends(tmp_path: Path) -> None:
    words = ["model=jamba_tiny", *RUN, "backends.attention=auto", "backends.mamba=auto"]
    assert main(["run", *words, f"hydra.run.dir={tmp_path}"]) == 0
    found = content(tmp_path, "provenance.json")
    assert found["verb"] == "run"
    assert found["overrides"] == words
    chosen = {
        group: choice for group, choice in found["choices"].items() if group in ("model", "workload", "pool")
    }
    assert chosen == {"model": "jamba_tiny", "workload": "random", "pool": "blocks"}
    assert "experiment" not in found["choices"]
    assert found["versions"]["python"] == python_version()
    for package in ("kvhybrid", "torch", "transformers"):
        assert found["versions"][package] == version(package)
    assert set(found["backends"]) == {"cache manager", "cache kernel", "attention", "mamba"}
    assert found["backends"]["attention"] in ("torch", "torch_varlen"), "what auto chose, not auto"
    assert found["backends"]["mamba"] == "torch"
    config = OmegaConf.load(tmp_path / "config.yaml")
    assert config.backends.attention == "auto"


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=tests", "-c", "user.email=tests@localhost", "-c", "init.defaultBranch=main"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_is_that_of_the_checkout_and_of_no_folder_around_it(tmp_path: Path) -> None:
    git(tmp_path, "init")
    (tmp_path / "file").write_text("one")
    assert not commit_of(tmp_path)
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    git(tmp_path, "tag", "-a", "v1", "-m", "a tag")
    (tmp_path / "untracked").touch()
    assert commit_of(tmp_path) == commit
    (tmp_path / "file").write_text("two")
    assert commit_of(tmp_path) == f"{commit}-dirty"
    (tmp_path / "site-packages").mkdir()
    assert commit_of(tmp_path / "site-packages") is None
