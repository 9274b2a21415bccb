"""A plug-in that fails is named in one line; what was measured before is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvhybrid.cli import main
from tests.kvhybrid.sessions.failing import PLACE

ROOT = Path(__file__).resolve().parents[3]
REPLAY = [
    "replay", f"trace={PLACE}:Recorded", "pool.block_size=16", "pool.num_blocks=64", "tracking=none",
]  # fmt: skip
RUN = ["run", "model=gemma3_tiny", "workload=random", "workload.requests=3", "workload.max_new_tokens=4"]
RUN += ["tracking=none"]
VERBS = pytest.mark.parametrize("command", [REPLAY, RUN], ids=["replay", "run"])


def ends(arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code and the only line on stderr that a user reads."""
    code = main([*arguments, f"hydra.run.dir={folder}"])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    (line,) = [line for line in captured.err.splitlines() if line.startswith("kvhybrid ")]
    if (folder / "summary.json").exists():
        assert captured.out.splitlines()[-1] == str(folder), "the folder with the results is the last line"
    return code, line


@VERBS
@pytest.mark.parametrize("after", [0, 3])
def test_a_scheduler_that_schedules_nothing_ends_the_run(
    command: list[str], after: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*command, f"scheduler={PLACE}:Idle", f"scheduler.after={after}"]
    code, line = ends(words, tmp_path / "run", capsys)
    assert code == 1
    assert f"scheduler {PLACE}:Idle makes no progress" in line
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


def test_requests_that_are_still_to_arrive_do_not_hide_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for executor in ("one_by_one", "open_loop"):
        words = [*REPLAY, f"executor={executor}", f"scheduler={PLACE}:Idle"]
        code, line = ends(words, tmp_path / executor, capsys)
        assert code == 1
        assert "makes no progress" in line


@VERBS
def test_a_scheduler_may_let_steps_pass(command: list[str], tmp_path: Path) -> None:
    assert main([*command, f"scheduler={PLACE}:Patient", f"hydra.run.dir={tmp_path / 'run'}"]) == 0


@VERBS
def test_an_exception_of_a_scheduler_names_it_and_keeps_the_results(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = ends([*command, f"scheduler={PLACE}:Raising"], tmp_path / "run", capsys)
    assert code == 1
    assert f"{PLACE}:Raising raises KeyError: 'oldest' (failing.py, line" in line
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("failed", 2)
    assert f"{PLACE}:Raising raises KeyError" in summary["reason"]


@VERBS
def test_so_does_one_that_the_cache_manager_calls(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = ends([*command, f"eviction={PLACE}:Forgetful"], tmp_path / "run", capsys)
    assert code == 1
    assert f"{PLACE}:Forgetful raises IndexError: no such place" in line


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("os_error", "Recorded raises FileNotFoundError: [Errno 2] No such file or directory: '/no/such/file'"),
        ("value_error", "Recorded raises ValueError: could not convert string to float: 'x'"),
        ("exit", "Recorded raises SystemExit: 3"),
        ("empty", "Recorded: nowhere.csv: no requests"),
        ("none", "Recorded: read() must return a list of TraceRequests, found None"),
        ("words", "Recorded: read() must return a list of TraceRequests, found 'one' in it"),
        ("twins", "Recorded: two requests have the id 'r0'"),
        ("no_output", "Recorded: 'r0': num_output_tokens must be a whole number in [1, 16,777,216], found 0"),
        ("no_prompt", "Recorded: 'r0': num_prompt_tokens must be a whole number in [1, 16,777,216], found 0"),
        ("late", "Recorded: 'r0': seconds must be a finite number, found nan"),
        ("short", "Recorded: 'r0': prefix_ids must have 3 numbers, found 2"),
    ],
)
def test_a_trace_that_cannot_be_replayed_is_refused(
    how: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = ends([*REPLAY, f"trace.how={how}"], tmp_path / "run", capsys)
    assert code == 2
    assert f"{PLACE}:{expected}" in line
    assert not [*tmp_path.rglob("*.*")]


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1.0", "0.0", "none", "fast"])
def test_a_cost_model_without_a_duration_is_named(
    seconds: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = ends([*REPLAY, f"cost={PLACE}:Odd", f"cost.how='{seconds}'"], tmp_path / "run", capsys)
    assert code == 1
    assert f"{PLACE}:Odd" in line
    shown = "could not convert" if seconds == "fast" else f"found {None if seconds == 'none' else float(seconds)}"
    assert shown in line


@pytest.mark.parametrize(
    ("how", "code", "expected"),
    [
        ("fewer", 1, "Wrong has sent 2 of the 3 requests that it states"),
        ("more", 1, "Wrong has sent 4 of the 3 requests that it states"),
        ("raise", 2, "Wrong raises OSError: prompts.txt is gone"),
        ("none", 2, "Wrong: traffic() must return a Traffic, found None"),
        ("tuples", 2, "PromptList: ready() has returned ('name', [1], 2)"),
        ("late", 1, "_Late raises RuntimeError: a bug in the traffic"),
    ],
)
def test_a_workload_that_does_not_do_what_it_states_is_named(
    how: str, code: int, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*RUN, f"workload={PLACE}:Wrong", f"workload.how={how}"]
    found, line = ends([word for word in words if word != "workload=random"], tmp_path / "run", capsys)
    assert found == code
    assert expected in line
    assert bool([*tmp_path.rglob("*.*")]) == (code == 1), "a refusal leaves nothing"


def test_arrivals_that_lose_a_request_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, line = ends([*REPLAY, f"executor={PLACE}:Lossy"], tmp_path / "run", capsys)
    assert code == 1
    assert f"executor {PLACE}:Lossy has sent 3 of the 4 requests" in line


def test_a_sweep_goes_on_after_it_and_marks_the_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*REPLAY, "-m", f"hydra.sweep.dir={tmp_path}", f"scheduler={PLACE}:Idle,default"]
    assert main(words) == 1
    assert "Traceback" not in capsys.readouterr().err
    jobs = json.loads((tmp_path / "sweep.json").read_text())["jobs"]
    assert [job["status"] for job in jobs] == ["failed", "done"]


def test_its_traceback_is_shown_if_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    assert main([*REPLAY, "trace.how=value_error", f"hydra.run.dir={tmp_path / 'run'}"]) == 2
    assert "in read" in capsys.readouterr().err
