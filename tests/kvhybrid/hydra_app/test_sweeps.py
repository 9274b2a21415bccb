"""Sweeps: each job leaves its outcome, under every launcher; what is not done runs again; optuna's objective."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from kvhybrid.cli import main
from kvhybrid.run_folder import RunFolder
from tests.kvhybrid.sessions.failing import PLACE
from tests.kvhybrid.sessions.stopping import CRASHING, STOPPING

ROOT = Path(__file__).resolve().parents[3]
TRACE = f"trace.path={ROOT}/tests/kvhybrid/replay/small_trace.jsonl"


def needs(distribution: str) -> pytest.MarkDecorator:
    try:
        missing = not version(distribution)
    except PackageNotFoundError:
        missing = True
    return pytest.mark.skipif(missing, reason=f"{distribution} is not installed")


needs_joblib = needs("hydra-joblib-launcher")
needs_optuna = needs("hydra-optuna-sweeper")
JOBLIB = pytest.param("joblib", marks=needs_joblib)
SUBMITIT = pytest.param("submitit_local", marks=needs("hydra-submitit-launcher"))
PAGE = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
PLUG_INS = {"joblib": needs_joblib, "optuna": needs_optuna, "submitit_slurm": needs("hydra-submitit-launcher")}
COMMANDS = [
    pytest.param(command, marks=[PLUG_INS[name] for name in re.findall(r"hydra/\w+=(\w+)", command)])
    for command in re.findall(r"^kvhybrid ((?:run|replay) .*-m .*)$", PAGE, re.MULTILINE)
]


@pytest.fixture(autouse=True)
def importable_by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def plug_ins(tmp_path: Path) -> str:
    """An option that adds ``executor=crashing``."""
    (tmp_path / "conf" / "executor").mkdir(parents=True)
    (tmp_path / "conf" / "executor" / "crashing.yaml").write_text(f"kind: {CRASHING}\n")
    return f"--config-dir={tmp_path / 'conf'}"


def sweep(folder: Path, *overrides: str, options: tuple[str, ...] = ()) -> int:
    trace = [] if any(override.startswith("trace.path=") for override in overrides) else [TRACE]
    return main(["replay", *options, "-m", *trace, *overrides, f"hydra.sweep.dir={folder}"])


def jobs_in(folder: Path) -> dict[str, dict[str, Any]]:
    jobs = json.loads((folder / "sweep.json").read_text())["jobs"]
    return {job["job"]: job for job in jobs}


def statuses(folder: Path) -> dict[str, str]:
    return {name: job["status"] for name, job in jobs_in(folder).items()}


@pytest.mark.parametrize("name", ["basic", JOBLIB])
def test_every_job_is_a_row_with_its_status_and_reason(
    name: str, plug_ins: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sweep"
    words = ["executor=crashing,one_by_one", "pool.num_blocks=3,300", f"hydra/launcher={name}"]
    assert sweep(folder, *words, options=(plug_ins,)) == 2
    assert statuses(folder) == {"0": "refused", "1": "failed", "2": "refused", "3": "done"}
    jobs = jobs_in(folder)
    assert "_Crash raises RuntimeError: a bug in the plug-in (stopping.py, line" in jobs["1"]["reason"]
    assert jobs["1"]["requests"] == 9, "figures up to the crash"
    assert "the pool has 3" in jobs["2"]["reason"]
    assert jobs["2"]["overrides"] == [TRACE, "executor=one_by_one", "pool.num_blocks=3"]
    *printed, last = capsys.readouterr().out.splitlines()
    assert last == str(folder)
    rows = [line.split()[:3] for line in printed if re.match(r"\d +(done|failed|refused) ", line)]
    assert rows == [
        ["0", "refused", "executor=crashing"],
        ["1", "failed", "executor=crashing"],
        ["2", "refused", "executor=one_by_one"],
        ["3", "done", "executor=one_by_one"],
    ]
    assert re.search("job 1 failed: .*:_Crash raises RuntimeError: a bug in the plug-in", "\n".join(printed))


@pytest.mark.parametrize("name", [JOBLIB, SUBMITIT])
def test_a_failed_job_alone_is_exit_code_1(name: str, plug_ins: str, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    words = ["executor=crashing,one_by_one", "trace.limit=20", f"hydra/launcher={name}"]
    assert sweep(folder, *words, options=(plug_ins,)) == 1
    assert statuses(folder) == {"0": "failed", "1": "done"}


def test_a_plug_in_that_exits_ends_only_its_own_job(tmp_path: Path) -> None:
    stop = f"+tracking.stop={{kind: '{STOPPING}', how: SystemExit, num_blocks: 20}}"
    assert sweep(tmp_path / "sweep", "pool.num_blocks=20,30", stop) == 1
    assert statuses(tmp_path / "sweep") == {"0": "failed", "1": "done"}
    assert main(["replay", TRACE, "pool.num_blocks=20", stop, f"hydra.run.dir={tmp_path / 'alone'}"]) == 1
    assert json.loads((tmp_path / "alone" / "summary.json").read_text())["status"] == "failed"


@needs_joblib
def test_a_worker_that_is_killed_costs_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stop = f"+tracking.stop={{kind: '{STOPPING}', how: SIGKILL, num_blocks: 30}}"
    words = ["pool.num_blocks=20,30", stop, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    assert sweep(tmp_path, *words) == 1
    assert statuses(tmp_path)["1"] == "failed"
    captured = capsys.readouterr()
    assert re.search(r"^1 +failed +pool.num_blocks=30", captured.out, re.MULTILINE)
    assert "the sweep has ended early: A worker process" in captured.err


@needs_joblib
def test_jobs_that_a_killed_worker_has_ended_are_started_once_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    once = f"+tracking.once={{kind: '{PLACE}:KilledOnce', flag: {tmp_path / 'flag'}}}"
    words = ["pool.num_blocks=20,30,40", once, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    assert sweep(tmp_path / "sweep", *words) == 0
    assert statuses(tmp_path / "sweep") == dict.fromkeys("012", "done")
    assert "a worker was killed; the jobs that are not done are started again" in capsys.readouterr().err


def test_started_again_it_runs_what_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = f"+tracking.stop={{kind: '{STOPPING}', how: SIGTERM, num_blocks: 30}}"
    words = ["pool.num_blocks=20,30,40", stop]
    assert sweep(tmp_path, *words) == 143
    assert statuses(tmp_path) == {"0": "done", "1": "interrupted"}
    assert jobs_in(tmp_path)["1"]["reason"] == "SIGTERM"
    first = (tmp_path / "0" / "summary.json").stat()

    monkeypatch.setenv("STOPPING", "off")
    capsys.readouterr()
    assert sweep(tmp_path, *words) == 0
    assert statuses(tmp_path) == dict.fromkeys("012", "done")
    assert (tmp_path / "0" / "summary.json").stat() == first
    assert capsys.readouterr().out.count(" is done: ") == 1
    whole = [json.loads(line)["step"] for line in (tmp_path / "1" / "metrics.jsonl").read_text().splitlines()]
    assert whole[0] == 100
    assert whole[-1] == jobs_in(tmp_path)["1"]["steps"]

    assert sweep(tmp_path, *words) == 0
    assert capsys.readouterr().out.count(" is done: ") == 3


def test_started_again_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["pool.num_blocks=20,30", f"+tracking.stop={{kind: '{STOPPING}', how: SIGKILL, num_blocks: 30}}"]
    command = [sys.executable, "-m", "kvhybrid", "replay", "-m", TRACE, *words, f"hydra.sweep.dir={tmp_path}"]
    killed = subprocess.run(command, env=dict(os.environ), capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    outcome = RunFolder(tmp_path / "1").outcome()
    assert outcome is not None
    assert (outcome["status"], outcome["overrides"][-2]) == ("failed", "pool.num_blocks=30")

    monkeypatch.setenv("STOPPING", "off")
    assert sweep(tmp_path, *words) == 0
    assert statuses(tmp_path) == {"0": "done", "1": "done"}


def test_a_refused_job_runs_once_its_mistake_is_mended(tmp_path: Path) -> None:
    trace = tmp_path / "late.jsonl"
    words = ["pool.num_blocks=20,300", f"trace.path={trace}"]
    assert sweep(tmp_path / "sweep", *words) == 2
    assert statuses(tmp_path / "sweep") == {"0": "refused", "1": "refused"}
    trace.write_text((ROOT / "tests/kvhybrid/replay/small_trace.jsonl").read_text())
    assert sweep(tmp_path / "sweep", *words) == 0


def test_a_job_of_another_configuration_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep(tmp_path, "pool.num_blocks=20") == 0
    before = (tmp_path / "0" / "summary.json").read_text()
    assert sweep(tmp_path, "pool.num_blocks=30,40") == 2
    assert "holds the result of another configuration" in capsys.readouterr().err
    assert (tmp_path / "0" / "summary.json").read_text() == before
    assert statuses(tmp_path) == {"0": "done", "1": "done"}


def test_a_job_that_is_refused_says_why_this_time_and_leaves_a_result_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(tmp_path, "scheduler.watermark=2,0.5") == 2
    result = (tmp_path / "1" / "summary.json").read_text()
    capsys.readouterr()
    assert sweep(tmp_path, "scheduler.watermark=3,0.5") == 2
    assert jobs_in(tmp_path)["0"]["reason"] == "scheduler.watermark must lie in [0, 1], found 3.0"
    assert sweep(tmp_path, "scheduler.watermark=3,4") == 2
    assert "scheduler.watermark must lie in [0, 1], found 4.0" in capsys.readouterr().err
    assert (tmp_path / "1" / "summary.json").read_text() == result


def test_a_job_that_another_process_runs_is_left_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunFolder(tmp_path / "0").claimed(["pool.num_blocks=20"]):
        code = "from kvhybrid.cli import main; import sys; sys.exit(main(sys.argv[1:]))"
        words = ["replay", "-m", TRACE, "pool.num_blocks=20,30", f"hydra.sweep.dir={tmp_path}"]
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
        assert [place.name for place in (tmp_path / "0").iterdir()] == [".running"]
    assert done.returncode == 2
    assert f"another process is writing to the run folder {tmp_path / '0'}" in done.stderr
    assert statuses(tmp_path) == {"0": "running", "1": "done"}


def test_jobs_may_lie_in_folders_named_by_their_values(tmp_path: Path) -> None:
    subdir = "hydra.sweep.subdir=blocks/${pool.num_blocks}"
    assert sweep(tmp_path, "pool.num_blocks=200,90", subdir) == 0
    assert list(jobs_in(tmp_path)) == ["blocks/90", "blocks/200"]


def test_each_job_has_a_record_of_its_own(tmp_path: Path) -> None:
    words = ["model=gemma3_tiny", "workload=random", "workload.requests=2", "workload.max_new_tokens=2"]
    words += ["tracking=none", f"record={tmp_path / 'calls.jsonl'}", f"hydra.sweep.dir={tmp_path}"]
    assert main(["run", "-m", "pool.num_blocks=256,257", *words]) == 0
    found = sorted(tmp_path.glob("calls*"))
    assert [place.name for place in found] == ["calls.0.jsonl", "calls.1.jsonl"]
    assert found[0].read_text() != found[1].read_text()
    assert main(["scenario", *map(str, found)]) == 0


def optimize(folder: Path, *words: str) -> int:
    options = ["hydra/sweeper=optuna", "hydra.sweeper.n_trials=3", "hydra.sweeper.n_jobs=1"]
    return sweep(folder, *options, "hydra.sweeper.sampler.seed=1", "trace.limit=12", *words)


@needs_optuna
def test_optuna_is_told_the_objective(tmp_path: Path) -> None:
    words = ["pool.num_blocks=range(20,60)", "objective=modelled/seconds", "hydra.sweeper.direction=minimize"]
    assert optimize(tmp_path, *words) == 0
    found = OmegaConf.load(tmp_path / "optimization_results.yaml")
    assert found.best_value == min(job["modelled/seconds"] for job in jobs_in(tmp_path).values())
    assert len(jobs_in(tmp_path)) == 3


@needs_optuna
def test_optuna_goes_on_past_a_trial_that_is_refused(tmp_path: Path) -> None:
    words = ["pool.num_blocks=choice(3,20,30)", "hydra.sweeper.direction=maximize"]
    assert optimize(tmp_path, *words) == 2
    assert {*statuses(tmp_path).values()} == {"done", "refused"}
    found = OmegaConf.load(tmp_path / "optimization_results.yaml")
    assert found.best_value == max(job.get("hit_rate", 0) for job in jobs_in(tmp_path).values()) > 0
    before = {name: (tmp_path / name / "summary.json").stat() for name in statuses(tmp_path)}
    assert optimize(tmp_path, *words) == 2, "the same trials, and what was done is told again"
    done = [name for name, status in statuses(tmp_path).items() if status == "done"]
    assert all((tmp_path / name / "summary.json").stat() == before[name] for name in done)


@pytest.mark.parametrize(
    ("objective", "hint"),
    [
        (
            "hitrate",
            "objective=hitrate: no such figure of the summary; did you mean objective=hit_rate?",
        ),
        ("status", "objective=status: no such figure of the summary; "),
        ("nothing of the kind", " more"),
        ("group/full/hit_rat", "did you mean objective=group/full/hit_rate?"),
    ],
)
def test_a_wrong_objective_is_refused_before_the_run(
    objective: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["replay", TRACE, f"objective={objective}"]) == 2
    captured = capsys.readouterr()
    assert hint in captured.err
    assert len(captured.err) < 1000, "most figures are counted, not listed"
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_sweep_on_the_page_composes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [re.sub(r"=(?:range\()?([^{[(,]+),.*", r"=\1", word) for word in shlex.split(command) if word != "-m"]
    assert main([*words, "--cfg", "job"]) == 0
    assert "objective: " in capsys.readouterr().out


def test_the_page_is_read() -> None:
    assert len(COMMANDS) > 5
