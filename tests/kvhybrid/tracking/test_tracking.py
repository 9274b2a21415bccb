"""Trackers: what they keep, and that one that fails costs nothing but itself."""

from __future__ import annotations

import json
import platform
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvhybrid.tracking.base import Tracker, TrackerError, Trackers
from kvhybrid.tracking.jsonl import JsonLinesTracker
from kvhybrid.tracking.wandb import WandbTracker
from tests.kvhybrid.tracking import wandb_file


def metrics(step: int) -> dict[str, float]:
    return {
        f"group/{name}/{figure}": value * step
        for name in ("full", "sliding_window.0")
        for figure, value in (("hit_rate", 0.1), ("own_hit_rate", 0.2), ("blocks_live", 3))
    }


@dataclass(kw_only=True)
class Failing(Tracker):
    """Breaks at one of the three calls."""

    at: str
    error: Exception

    def _maybe(self, call: str) -> None:
        if call == self.at:
            raise self.error

    def start(self, config: Mapping[str, Any], folder: Path) -> None:
        self._maybe("start")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._maybe("log")

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._maybe("finish")


def track(trackers: Mapping[str, Tracker], folder: Path, steps: int = 3) -> Trackers:
    tracking = Trackers(trackers)
    tracking.start({"seed": 7, "pool": {"num_blocks": 99}}, folder)
    for number in range(1, steps + 1):
        tracking.log(number, metrics(number))
    tracking.finish({"status": "done", "hit_rate": 0.25})
    return tracking


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_json_lines_hold_every_figure_of_every_step(tmp_path: Path) -> None:
    track({"jsonl": JsonLinesTracker()}, tmp_path)
    assert lines(tmp_path) == [{"step": n, **metrics(n)} for n in (1, 2, 3)]
    assert lines(tmp_path)[0]["group/sliding_window.0/own_hit_rate"] == 0.2


def test_json_lines_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    tracker = JsonLinesTracker()
    tracker.start({}, tmp_path)
    for number in (1, 2):
        tracker.log(number, metrics(number))
        assert lines(tmp_path)[-1] == {"step": number, **metrics(number)}


@pytest.mark.parametrize("at", ["start", "log", "finish"])
def test_a_failing_tracker_is_named_and_loses_no_one_elses_figures(
    at: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = Failing(at=at, error=OSError("disk\nfull"))
    tracking = track({"mine": failing, "jsonl": JsonLinesTracker()}, tmp_path)
    assert len(lines(tmp_path)) == 3
    assert tracking.failures == {"mine": "OSError: disk full"}
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "tracking.mine failed, the run continues without it: OSError: disk full"


def test_a_tracker_may_say_what_is_wrong_in_its_own_words(tmp_path: Path) -> None:
    failing = Failing(at="start", error=TrackerError("no such server"))
    assert track({"mine": failing}, tmp_path).failures == {"mine": "no such server"}


def test_a_missing_wandb_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wandb.py").write_text("raise ImportError('not for this Python')")
    monkeypatch.syspath_prepend(tmp_path)
    track({"wandb": WandbTracker(), "jsonl": JsonLinesTracker()}, tmp_path)
    (line,) = capsys.readouterr().err.splitlines()
    assert "tracking.wandb" in line
    assert "wandb cannot be imported: not for this Python; choose tracking=jsonl" in line
    assert len(lines(tmp_path)) == 3


def test_wandb_keeps_series_config_and_summary_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
        tracking = track({"wandb": WandbTracker(project="tests", name=f"run {folder.name}")}, folder)
        assert tracking.failures == {}
    for folder in (one, two):
        logged = wandb_file.series(folder)
        assert [values["_step"] for values in logged] == [1, 2, 3]
        for number, values in enumerate(logged, start=1):
            expected = metrics(number)
            assert {name: values[name] for name in expected} == expected
        assert wandb_file.config(folder)["pool"] == {"num_blocks": 99}
        assert wandb_file.config(folder)["seed"] == 7
        found = wandb_file.summary(folder)
        assert found["hit_rate"] == 0.25
        assert found["group/full/hit_rate"] == metrics(3)["group/full/hit_rate"]
        assert wandb_file.exit_codes(folder) == [0]
    assert capfd.readouterr() == ("", "")


def test_wandb_is_told_of_a_run_that_failed(tmp_path: Path) -> None:
    tracking = Trackers({"wandb": WandbTracker()})
    tracking.start({}, tmp_path)
    tracking.finish({"status": "failed"})
    assert tracking.failures == {}
    assert wandb_file.exit_codes(tmp_path) == [1]


def test_a_mode_in_the_environment_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert track({"wandb": WandbTracker()}, tmp_path).failures == {}
    assert not list(tmp_path.glob("wandb/offline-run-*"))


@dataclass(kw_only=True)
class Listening(Tracker):
    """Keeps the configuration that it was given."""

    def start(self, config: Mapping[str, Any], folder: Path) -> None:
        self.config = config

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def finish(self, summary: Mapping[str, Any]) -> None: ...


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"model": {"path": "/home/ann/models/tiny"}}, {"model": {"path": "tiny"}}),
        ({"model": {"path": "ann/models/tiny/"}}, {"model": {"path": "tiny"}}),
        ({"trace": {"path": "../ann/calls.jsonl"}}, {"trace": {"path": "calls.jsonl"}}),
        ({"mine": {"index_file": r"data\ann\x.idx"}}, {"mine": {"index_file": "x.idx"}}),
        ({"record": "C:\\Users\\ann\\my calls.jsonl"}, {"record": "my calls.jsonl"}),
        ({"record": None, "seed": 7, "rate": 0.5}, {"record": None, "seed": 7, "rate": 0.5}),
        ({"mine": {"of": ["/home/ann/a b.txt", "~/b.txt"]}}, {"mine": {"of": ["a b.txt", "b.txt"]}}),
        ({"mine": {"where": Path("/home/ann/c")}}, {"mine": {"where": "c"}}),
        ({"name": "Gemma on /home/ann/calls.jsonl, twice"}, {"name": "Gemma on calls.jsonl, twice"}),
        ({"name": "(file:///home/ann/a), ~ann/of ann/b; ./ann/c"}, {"name": "(a), b; c"}),
        ({"overrides": ["trace.path=/home/ann/t.jsonl"]}, {"overrides": ["trace.path=t.jsonl"]}),
        ({"name": "A/B test, 1/2, ~3 s, on / off ..."}, {"name": "A/B test, 1/2, ~3 s, on / off ..."}),
    ],
)
def test_a_tracker_sees_of_every_path_its_last_name(
    given: dict[str, Any], shown: dict[str, Any], tmp_path: Path
) -> None:
    listening = Listening()
    Trackers({"listening": listening}).start(given, tmp_path)
    assert listening.config == shown


def test_nothing_that_wandb_uploads_names_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    home = tmp_path / "home of ann"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setattr(socket, "gethostname", lambda: "host-of-ann")
    for name in ("USER", "LOGNAME", "USERNAME"):
        monkeypatch.setenv(name, "ann-herself")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(sys, "argv", [str(home / "script.py"), f"trace.path={home}/t.jsonl"])
    keys = ("workload", "model", "trace", "quality")
    config = {"record": f"{home}/calls.jsonl", **{key: {"path": f"{home}/{key}"} for key in keys}}
    tracking = Trackers({"wandb": WandbTracker(name=f"on {home}/t.jsonl", tags=[f"{home}/t.jsonl"])})
    tracking.start(config, home)
    tracking.log(1, metrics(1))
    tracking.finish({"status": "done"})
    assert tracking.failures == {}
    assert wandb_file.config(home)["model"] == {"path": "model"}
    (run,) = home.glob("wandb/offline-run-*")
    # wandb's own logs stay where they are: a sync reads the records and the folder of files.
    uploaded = [place for place in run.rglob("*") if place.is_file() and place.parent.name != "logs"]
    assert [place.suffix for place in uploaded] == [".wandb"]
    machine = {platform.node(), "host-of-ann", "ann-herself", "home of ann", tmp_path.name}
    machine |= {str(Path(__file__).parents[3]), platform.release()}
    data = uploaded[0].read_bytes()
    assert [found for found in sorted(machine) if found.encode() in data] == []
    (record,) = [record.run for record in wandb_file.records(home) if record.HasField("run")]
    assert record.host == ""


OWN = ["config.yaml", "summary.json", "Summary.JSON", "outputs.jsonl", "hits.png", "wandb", ".config.yaml.partial"]


@pytest.mark.parametrize("name", [*OWN, "../metrics.jsonl", "/metrics.jsonl", "a/b", "..", ".", ""])
def test_json_lines_stay_in_the_folder_and_overwrite_none_of_its_files(name: str) -> None:
    with pytest.raises(ValueError, match=r"tracking.jsonl.file must be a file name in the run folder"):
        JsonLinesTracker(file=name)


def test_two_trackers_never_write_one_file(tmp_path: Path) -> None:
    tracking = track(
        {"one": JsonLinesTracker(), "two": JsonLinesTracker(), "own": JsonLinesTracker(file="x")}, tmp_path
    )
    assert list(tracking.failures) == ["two"]
    assert len(lines(tmp_path)) == 3
    (tmp_path / "mine").write_text("mine")
    tracking = Trackers({"jsonl": JsonLinesTracker(file="mine")})
    tracking.start({}, tmp_path)
    assert "already exists" in tracking.failures["jsonl"]
    assert (tmp_path / "mine").read_text() == "mine"
