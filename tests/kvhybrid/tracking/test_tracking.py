"""Trackers: what they keep, and that one that fails costs nothing but itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvhybrid.tracking import JsonLinesTracker, Tracker, TrackerError, Trackers, WandbTracker
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
    assert line == "tracking.mine failed, the run goes on without it: OSError: disk full"


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
