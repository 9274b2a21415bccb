"""However a run ends, what it measured is kept and marked: signals, crashes, a full disk, a second process."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvhybrid.cli import main
from kvhybrid.run_folder import CLAIM, RunFolder
from tests.kvhybrid.sessions.stopping import CRASHING, STOPPING
from tests.kvhybrid.tracking import wandb_file

ROOT = Path(__file__).resolve().parents[3]
REPLAY = ["replay", f"trace.path={ROOT}/tests/kvhybrid/replay/small_trace.jsonl", "cache=gemma3_27b"]
RUN = ["run", "model=gemma3_tiny", "workload=random", "workload.requests=3", "workload.max_new_tokens=4"]
TINY = [*RUN, "tracking=jsonl"]
VERBS = pytest.mark.parametrize("command", [REPLAY, TINY], ids=["replay", "run"])


def stop(how: str, **fields: Any) -> str:
    said = "".join(f", {name}: {value}" for name, value in fields.items())
    return f"+tracking.stop={{kind: '{STOPPING}', how: {how}{said}}}"


def summary_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def steps_in(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "kvhybrid", *arguments]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def wait_for(file: Path, running: subprocess.Popen[str]) -> None:
    while not file.exists():
        assert running.poll() is None, running.communicate()
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("command", "number", "code", "word"),
    [
        (REPLAY, "SIGTERM", 143, "terminated"),
        (REPLAY, "SIGINT", 130, "interrupted"),
        (TINY, "SIGTERM", 143, "terminated"),
    ],
    ids=["SIGTERM-replay", "SIGINT-replay", "SIGTERM-run"],
)
def test_a_signal_ends_it_in_order(
    command: list[str], number: str, code: int, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, stop(number), f"hydra.run.dir={tmp_path}"]) == code
    captured = capsys.readouterr()
    reason = {"SIGTERM": "SIGTERM", "SIGINT": "Ctrl-C"}[number]
    assert f"(interrupted: {reason})" in captured.out
    assert captured.out.splitlines()[-1] == str(tmp_path)
    assert captured.err.splitlines()[-1] == f"kvhybrid {command[0]}: {word}"
    summary = summary_in(tmp_path)
    assert (summary["status"], summary["reason"]) == ("interrupted", reason)
    assert len(steps_in(tmp_path)) == 2
    assert steps_in(tmp_path)[-1] == summary["steps"]
    assert (tmp_path / "hits.png").exists()
    assert not (tmp_path / CLAIM).exists()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_time_limit_that_sends_its_signal_to_all_at_once_is_one_signal(tmp_path: Path) -> None:
    with process(*REPLAY, stop("wait"), "tracking=wandb", f"hydra.run.dir={tmp_path}") as running:
        wait_for(tmp_path / "waiting", running)
        for _ in range(3):
            running.send_signal(signal.SIGTERM)
        assert running.wait() == 143
    assert summary_in(tmp_path)["reason"] == "SIGTERM"
    assert wandb_file.exit_codes(tmp_path) == [1]


def test_a_kill_leaves_whole_lines_and_a_failed_wandb_run(tmp_path: Path) -> None:
    with process(*REPLAY, stop("SIGKILL", at=3), "tracking=wandb", f"hydra.run.dir={tmp_path}") as running:
        assert running.wait() == -signal.SIGKILL
    assert steps_in(tmp_path) == [100, 200, 300]
    outcome = RunFolder(tmp_path).outcome()
    assert outcome is not None
    assert outcome["status"] == "failed"
    assert wandb_file.exit_codes(tmp_path) == [1]
    assert [values["_step"] for values in wandb_file.series(tmp_path)][:2] == [100, 200]


@pytest.fixture
def plug_ins(tmp_path: Path) -> str:
    """An option that adds ``executor=crashing``."""
    (tmp_path / "conf" / "executor").mkdir(parents=True)
    (tmp_path / "conf" / "executor" / "crashing.yaml").write_text(f"kind: {CRASHING}\n")
    return f"--config-dir={tmp_path / 'conf'}"


def test_a_crash_of_a_plug_in_is_one_line_and_keeps_the_figures(
    plug_ins: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert main(["replay", plug_ins, *REPLAY[1:], "executor=crashing", f"hydra.run.dir={folder}"]) == 1
    summary = summary_in(folder)
    assert summary["status"] == "failed"
    assert "stopping:_Crash raises RuntimeError: a bug in the plug-in (stopping.py, line" in summary["reason"]
    assert summary["reason"] in capsys.readouterr().err.splitlines()[-1]
    assert summary["requests"] == 9
    assert steps_in(folder) == [100, 200]


def test_what_cannot_be_run_after_all_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvhybrid.replay.loop import ReplayLoop
    from kvhybrid.scheduling.base import CapacityError

    def too_large(loop: ReplayLoop, num_steps: int) -> bool:
        raise CapacityError("request", "needs 3 of 2 blocks")

    monkeypatch.setattr(ReplayLoop, "advance", too_large)
    assert main([*REPLAY, f"hydra.run.dir={tmp_path}"]) == 2
    assert summary_in(tmp_path)["status"] == "refused"
    assert "needs 3 of 2 blocks" in summary_in(tmp_path)["reason"]


def test_a_second_process_is_refused_while_the_first_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with process(*REPLAY, stop("wait"), f"hydra.run.dir={tmp_path}") as running:
        wait_for(tmp_path / "waiting", running)
        before = {place.name for place in tmp_path.iterdir()}
        assert main([*REPLAY, f"hydra.run.dir={tmp_path}"]) == 2
        assert capsys.readouterr().err == (
            f"kvhybrid replay: another process is writing to the run folder {tmp_path}\n"
        )
        assert {place.name for place in tmp_path.iterdir()} == before
        (tmp_path / "go").touch()
        assert running.wait() == 0
    assert summary_in(tmp_path)["status"] == "done"


@contextmanager
def disk_for_files_of(num_bytes: int) -> Iterator[None]:
    """No file of this process can grow beyond, as on a full disk; and the kernel writes what still fits."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@pytest.mark.parametrize(
    ("command", "has_summary"),
    [(REPLAY, True), (REPLAY, False), (TINY, False)],
    ids=["replay-summary-fits", "replay", "run"],
)
def test_a_full_disk_is_named_and_the_figures_are_printed(
    command: list[str], has_summary: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, whole = tmp_path / "run", tmp_path / "whole"
    assert main([*command, f"hydra.run.dir={whole}"]) == 0
    capsys.readouterr()
    size = (whole / "summary.json").stat().st_size
    with disk_for_files_of(size + 500 if has_summary else size - 200):
        assert main([*command, f"hydra.run.dir={folder}"]) == 1
    captured = capsys.readouterr()
    assert "(failed: not everything could be written)" in captured.out
    assert f"of {json.loads((whole / 'summary.json').read_text())['pool/num_blocks']:,} blocks" in captured.out
    verb = command[0]
    assert f"kvhybrid {verb}: {folder / 'hits.png'}: File too large\n" in captured.err
    assert "tracking.jsonl failed, the run continues without it: " in captured.err
    assert steps_in(folder) == steps_in(whole)[: len(steps_in(folder))], "no line is torn"
    assert not [place for place in folder.iterdir() if place.name.endswith(".partial")]
    outcome = RunFolder(folder).outcome()
    assert outcome is not None
    assert outcome["status"] == "failed"
    said = captured.err.count(f"kvhybrid {verb}: {folder / 'summary.json'}: File too large\n")
    assert said == (0 if has_summary else 1)


def test_a_record_that_does_not_fit_costs_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "calls.jsonl"
    command = [*RUN, "tracking=none", "workload.requests=8", f"record={record}"]
    assert main([*command, f"hydra.run.dir={tmp_path / 'whole'}"]) == 0
    size = record.stat().st_size
    record.unlink()
    assert size > (tmp_path / "whole" / "summary.json").stat().st_size + 500
    with disk_for_files_of(size - 100):
        assert main([*command, f"hydra.run.dir={tmp_path / 'run'}"]) == 1
    assert f"{record}: File too large" in capsys.readouterr().err
    assert summary_in(tmp_path / "run")["requests"] == 8
    assert not record.exists()


@VERBS
def test_a_disk_that_is_full_from_the_start_is_one_line(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    with disk_for_files_of(10):
        assert main([*command, f"hydra.run.dir={folder}"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"kvhybrid {command[0]}: {folder}: File too large\n"
    assert [place for place in tmp_path.rglob("*") if place.is_file()] == []


def test_so_it_is_of_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "sweep"
    with disk_for_files_of(10):
        assert main([REPLAY[0], "-m", *REPLAY[1:], "pool.num_blocks=20,30", f"hydra.sweep.dir={folder}"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"kvhybrid replay: {folder}: File too large\n"
    assert [place for place in tmp_path.rglob("*") if place.is_file()] == []
