"""wandb runs in a process of its own: whatever becomes of it, the run is held up for a bounded time at most."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kvhybrid.cli import main
from kvhybrid.run_folder import CLAIM
from kvhybrid.tracking.base import Trackers
from kvhybrid.tracking.jsonl import JsonLinesTracker
from kvhybrid.tracking.wandb import WandbTracker

SMALL = Path(__file__).parents[1] / "replay" / "small_trace.jsonl"
PATIENCE = 0.5
FAKE = """
import os, signal, time
PLACE = {place!r}

def at(place):
    if place == PLACE:
        {act}

class Run:
    summary = {{}}

    def log(self, metrics, step):
        at("log")

    def finish(self, exit_code):
        at("finish")

def Settings(**values):
    print("what wandb prints is no answer to the run")

def init(**values):
    at("init")
    return Run()
"""

InstallFake = Callable[[str, str], None]


@pytest.fixture
def fake_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstallFake:
    """Puts a wandb in the way that acts in ``init``, ``log`` or ``finish``."""

    def install(place: str, act: str) -> None:
        (tmp_path / "fake").mkdir()
        (tmp_path / "fake" / "wandb.py").write_text(FAKE.format(place=place, act=act))
        monkeypatch.syspath_prepend(tmp_path / "fake")

    return install


def track(folder: Path, patience: float, steps: int = 3) -> Trackers:
    tracking = Trackers({"wandb": WandbTracker(patience=patience), "jsonl": JsonLinesTracker()})
    tracking.start({"seed": 1}, folder)
    for step in range(1, steps + 1):
        tracking.log(step, {f"figure/{number}": 0.5 for number in range(100)})
    tracking.finish({"status": "done"})
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == steps
    return tracking


@pytest.mark.parametrize(("place", "steps"), [("init", 3), ("log", 3), ("log", 200), ("finish", 3)])
def test_one_that_hangs_is_given_up(
    place: str, steps: int, fake_wandb: InstallFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_wandb(place, "time.sleep(600)")
    tracking = track(tmp_path, PATIENCE, steps)
    assert tracking.failures == {"wandb": f"wandb did not answer for {PATIENCE} s (tracking.wandb.patience)"}
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tracking.wandb failed, the run continues without it: wandb did not answer")


@pytest.mark.parametrize("place", ["init", "log", "finish"])
@pytest.mark.parametrize(
    ("act", "message"),
    [
        ("raise ValueError('no\\nlogin')", "ValueError: no login"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "the process of wandb has ended"),
    ],
    ids=["raises", "dies"],
)
def test_one_that_fails_says_why(
    place: str, act: str, message: str, fake_wandb: InstallFake, tmp_path: Path
) -> None:
    fake_wandb(place, act)
    assert track(tmp_path, 60.0, steps=200).failures == {"wandb": message}


def test_ctrl_c_while_wandb_starts_leaves_a_marked_folder(
    fake_wandb: InstallFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_wandb("init", "os.kill(os.getppid(), signal.SIGINT); time.sleep(600)")
    folder = tmp_path / "run"
    assert main(["replay", f"trace.path={SMALL}", "tracking=wandb", f"hydra.run.dir={folder}"]) == 130
    captured = capsys.readouterr()
    assert "0 requests (interrupted: Ctrl-C)" in captured.out
    assert captured.err == "kvhybrid replay: interrupted\n"
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["reason"], summary["tracking_failures"]) == ("interrupted", "Ctrl-C", {})
    assert {place.name for place in folder.iterdir()} == {
        "config.yaml",
        "metrics.jsonl",
        "provenance.json",
        "summary.json",
    }
    assert not (folder / CLAIM).exists()


@pytest.mark.parametrize("patience", [0, -1.0, float("nan"), float("inf"), 1e7])
def test_a_patience_that_cannot_be_waited_is_refused(patience: float) -> None:
    wanted = f"patience must be more than 0 and at most 2,000,000, found {patience}"
    with pytest.raises(ValueError, match=wanted):
        WandbTracker(patience=patience)
