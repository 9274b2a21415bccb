"""``kvhybrid run`` from end to end, with the tiny models: what it prints, writes and tracks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from kvhybrid.cli import main
from kvhybrid.engine.quality import QualitySettings
from kvhybrid.errors import InputError
from kvhybrid.sessions.run import run
from kvhybrid.sessions.run_settings import PoolSettings, RunSettings, SchedulerSettings
from kvhybrid.settings.model import CheckpointSettings, Gemma3Settings, JambaSettings, Qwen3NextSettings
from kvhybrid.tracking.base import Tracker
from kvhybrid.tracking.jsonl import JsonLinesTracker
from kvhybrid.tracking.wandb import WandbTracker
from kvhybrid.workloads.multi_turn import MultiTurn
from kvhybrid.workloads.random import Random
from kvhybrid.workloads.shared_prefix import SharedPrefix
from kvhybrid.workloads.source_code import SourceCode
from tests.kvhybrid.sessions.stopping import Stopping
from tests.kvhybrid.tracking import wandb_file

PNG = b"\x89PNG\r\n\x1a\n"
SMALL = ["workload.max_new_tokens=4"]


def settings(**changes: Any) -> RunSettings:
    chosen: dict[str, Any] = {
        "model": Gemma3Settings(cpu_threads=1),
        "workload": SharedPrefix(num_prefixes=2, requests_per_prefix=4, prefix_tokens=96, max_new_tokens=4),
        "tracking": {"jsonl": JsonLinesTracker()},
    }
    return RunSettings(**{**chosen, **changes})


def summary_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def steps_in(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_command_fills_a_folder_and_prints_it_last(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvhybrid", "run", *SMALL, "workload.requests_per_prefix=3"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.splitlines()[-1])
    assert folder.parent == tmp_path / "runs" / "outputs" / "run"
    assert {place.name for place in folder.iterdir()} == {
        "config.yaml",
        "hits.png",
        "metrics.jsonl",
        "outputs.jsonl",
        "provenance.json",
        "summary.json",
        "wandb",
    }
    assert [place.name for place in tmp_path.iterdir()] == ["runs"]

    summary = summary_in(folder)
    assert summary["status"] == "done"
    assert summary["requests"] == 12
    assert summary["plan"]["pool_bytes"] == summary["plan"]["num_blocks"] * summary["plan"]["bytes_per_block"]
    assert "planned: " in done.stdout
    assert summary["hit_rate"] > 0.3
    assert summary["quality/bits_per_byte"] < 2.6
    assert f"{summary['quality/bits_per_byte']:.3f} bits per byte" in done.stdout
    kinds = {group["name"]: group["kind"] for group in summary["groups"]}
    assert set(kinds.values()) == {"full", "sliding_window"}
    for name, kind in kinds.items():
        assert summary[f"group/{name}/hit_rate"] == summary["hit_rate"]
        assert name in done.stdout
        assert kind in done.stdout

    assert OmegaConf.load(folder / "config.yaml").workload.requests_per_prefix == 3
    assert (folder / "hits.png").read_bytes().startswith(PNG)
    steps = steps_in(folder)
    assert len(steps) == summary["steps"]
    assert steps[-1]["group/full/hit_rate"] == summary["hit_rate"]

    assert len(done.stderr.splitlines()) <= 6
    assert "requests done" in done.stderr
    assert "Traceback" not in done.stderr

    logged = wandb_file.series(folder)
    for name in kinds:
        assert [values[f"group/{name}/hit_rate"] for values in logged] == [
            step[f"group/{name}/hit_rate"] for step in steps
        ]
    for figure in ("hit_rate", "quality/bits_per_byte"):
        assert wandb_file.summary(folder)[figure] == summary[figure]
    assert wandb_file.config(folder)["pool"]["block_size"] == 16


def test_what_a_trained_model_says_is_shown_and_kept_but_not_tracked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = SourceCode(num_prefixes=2, requests_per_prefix=2, max_new_tokens=8)
    model = CheckpointSettings(path="jamba_bytes", cpu_threads=1)
    trackers: dict[str, Tracker] = {"jsonl": JsonLinesTracker(), "wandb": WandbTracker()}
    run(settings(model=model, workload=workload, tracking=trackers), tmp_path / "run")
    outputs = [json.loads(line) for line in (tmp_path / "run" / "outputs.jsonl").read_text().splitlines()]
    assert [output["output_tokens"] for output in outputs] == [8] * 4
    shown = capsys.readouterr().out
    marked = ["\n".join(f"> {line}".rstrip() for line in output["prompt"].split("\n")) for output in outputs]
    assert [prompt in shown for prompt in marked] == [True] * 3 + [False]
    assert all(output["text"] in shown for output in outputs[:3])
    heads = [output["prompt"].splitlines()[-1].encode() for output in outputs]
    tracked = [place for place in (tmp_path / "run").rglob("*") if place.is_file()]
    for place in tracked:
        if place.name != "outputs.jsonl":
            assert not any(head in place.read_bytes() for head in heads), place


def test_a_sweep_ends_with_a_table_over_its_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = [
        "model=gemma3_tiny,jamba_tiny",
        "workload=random,few_shot",
        "workload.requests=4",
        "tracking=jsonl",
        *SMALL,
    ]
    assert main(["run", "-m", *overrides]) == 0
    lines = capsys.readouterr().out.splitlines()
    folder = Path(lines[-1])
    assert folder.parent == tmp_path / "runs" / "outputs" / "run" / "sweeps"
    found = {place.name: summary_in(place) for place in folder.iterdir() if place.is_dir()}
    assert {name: summary["name"] for name, summary in found.items()} == {
        "0": "gemma3_tiny on random",
        "1": "gemma3_tiny on few_shot",
        "2": "jamba_tiny on random",
        "3": "jamba_tiny on few_shot",
    }
    assert found["0"]["hit_rate"] == found["2"]["hit_rate"] == 0
    assert found["1"]["hit_rate"] > 0
    assert {group["kind"] for group in found["3"]["groups"]} == {"full", "mamba"}
    table = lines[lines.index(next(line for line in lines if line.startswith("sweep"))) :]
    rows = {line.split()[0]: line for line in table if line.split()[:1] and line.split()[0] in found}
    for name, summary in found.items():
        assert f"{summary['hit_rate']:.1%}" in rows[name]
    jobs = json.loads((folder / "sweep.json").read_text())["jobs"]
    assert [(job["job"], job["hit_rate"]) for job in jobs] == [(n, found[n]["hit_rate"]) for n in sorted(found)]
    assert "model=gemma3_tiny" in rows["0"]
    assert not any("max_new_tokens" in line for line in table), "what all jobs share is no news"


def test_a_sweep_goes_on_past_a_job_that_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = ["tracking=jsonl", "workload=random", "workload.requests=2", "pool.block_size=0,16", *SMALL]
    assert main(["run", "-m", *overrides]) == 2
    captured = capsys.readouterr()
    assert "kvhybrid run: pool.block_size must be at least 1, found 0" in captured.err
    folder = Path(captured.out.splitlines()[-1])
    assert {place.name: summary_in(place)["status"] for place in folder.iterdir() if place.is_dir()} == {
        "0": "refused",
        "1": "done",
    }
    assert re.search(r"^0 +refused +pool.block_size=0 *$", captured.out, re.MULTILINE)
    assert re.search(r"^1 +done +pool.block_size=16 ", captured.out, re.MULTILINE)
    assert "job 0 refused: pool.block_size must be at least 1, found 0" in captured.out


@pytest.mark.parametrize("model", [Gemma3Settings, JambaSettings, Qwen3NextSettings])
def test_turns_of_a_conversation_hit_what_was_said_before(model: type[Gemma3Settings], tmp_path: Path) -> None:
    workload = MultiTurn(num_conversations=2, turns=3, system_tokens=48, user_tokens=40, max_new_tokens=16)
    summary = run(settings(model=model(cpu_threads=1), workload=workload), tmp_path / "run")
    assert summary.requests == 6
    assert summary.output_tokens == 6 * 16
    assert summary.hit_rate > 0.2


def test_every_prompt_token_is_a_hit_or_has_a_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(settings(pool=PoolSettings(num_blocks=128)), tmp_path / "run")
    shown = capsys.readouterr().out
    assert "where the prompt tokens went" in shown
    assert "never" in shown
    for step in steps_in(tmp_path / "run"):
        for group in ("full", "sliding_window.0"):
            causes = sum(value for name, value in step.items() if name.startswith(f"group/{group}/miss/"))
            assert step[f"group/{group}/tokens_hit"] + causes == step[f"group/{group}/tokens_asked"]
    assert summary_in(tmp_path / "run")["group/full/miss/never_seen"] > 0


def test_a_recorded_run_plays_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(settings(record=str(tmp_path / "calls.jsonl"), pool=PoolSettings(num_blocks=128)), tmp_path / "run")
    assert main(["scenario", str(tmp_path / "calls.jsonl")]) == 0
    scenario = json.loads((tmp_path / "calls.jsonl").read_text())
    assert [step["do"] for step in scenario["steps"]].count("submit") == 8
    assert "note" not in scenario


def test_a_record_replaces_a_recording_and_nothing_else(tmp_path: Path) -> None:
    calls, notes = tmp_path / "calls.jsonl", tmp_path / "notes.jsonl"
    notes.write_text('{"timestamp": 0, "input_length": 3}\n')
    with pytest.raises(
        InputError, match=r"record: .*notes.jsonl exists and is not a scenario file; accepted: a new"
    ):
        run(settings(record=str(notes)), tmp_path / "refused")
    assert notes.read_text() == '{"timestamp": 0, "input_length": 3}\n'
    for name in ("one", "two"):
        run(settings(record=str(calls), name=name), tmp_path / name)
    assert json.loads(calls.read_text())["id"] == "two"


def test_quality_that_is_not_measured_is_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(settings(), tmp_path / "asked")
    assert capsys.readouterr().out.splitlines()[-1] == "quality was not measured: the model's weights are random"
    run(settings(quality=QualitySettings(bytes=0)), tmp_path / "off")
    assert "quality" not in capsys.readouterr().out


def test_the_same_settings_give_the_same_figures(tmp_path: Path) -> None:
    one, two = (run(settings(), tmp_path / name) for name in ("one", "two"))
    assert one.cache == two.cache
    assert one.steps == two.steps


def test_without_prefix_caching_nothing_is_hit(tmp_path: Path) -> None:
    summary = run(settings(pool=PoolSettings(enable_prefix_caching=False)), tmp_path / "run")
    assert summary.hit_rate == 0
    assert summary.requests == 8


def test_a_run_from_python_describes_its_settings(tmp_path: Path) -> None:
    run(settings(seed=9), tmp_path / "run")
    written = OmegaConf.load(tmp_path / "run" / "config.yaml")
    assert written.seed == 9
    assert written.model.sliding_window == 32
    assert written.workload.kind == "kvhybrid.workloads.shared_prefix:SharedPrefix"


def test_ctrl_c_ends_a_run_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stopping = Stopping(at=3, how="KeyboardInterrupt")
    summary = run(settings(tracking={"jsonl": JsonLinesTracker(), "stop": stopping}), tmp_path / "run")
    assert summary.status == "interrupted"
    assert summary_in(tmp_path / "run")["status"] == "interrupted"
    assert [step["step"] for step in steps_in(tmp_path / "run")] == [1, 2, 3]
    assert "(interrupted: Ctrl-C)" in capsys.readouterr().out


def test_ctrl_c_ends_a_sweep_with_its_own_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    stop = f"+tracking.stop={{kind: '{Stopping.__module__}:Stopping', how: KeyboardInterrupt}}"
    assert main(["run", "-m", "tracking=none", "seed=1,2", "workload=random", *SMALL, stop]) == 130
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1] == "kvhybrid run: interrupted"
    folder = Path(captured.out.splitlines()[-1])
    assert summary_in(folder / "0")["status"] == "interrupted"
    assert [place.name for place in folder.iterdir() if place.is_dir()] == ["0"]
    assert "job 0 interrupted: Ctrl-C" in captured.out


def test_a_crash_keeps_the_figures_that_were_there(tmp_path: Path) -> None:
    stopping = Stopping(at=3, how="SystemExit")
    with pytest.raises(SystemExit):
        run(settings(tracking={"jsonl": JsonLinesTracker(), "stop": stopping}), tmp_path / "run")
    assert summary_in(tmp_path / "run")["status"] == "failed"
    assert len(steps_in(tmp_path / "run")) == 3


def test_a_tracker_that_fails_is_in_the_summary_and_the_run_goes_on(tmp_path: Path) -> None:
    stopping = Stopping(how="OSError")
    summary = run(settings(tracking={"stop": stopping, "jsonl": JsonLinesTracker()}), tmp_path / "run")
    assert summary.status == "done"
    assert len(steps_in(tmp_path / "run")) == summary.steps
    assert summary_in(tmp_path / "run")["tracking_failures"] == {"stop": "OSError: no message"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"scheduler": SchedulerSettings(max_model_len=50)},
            "longest request has 124 tokens, more than the 50 of scheduler.max_model_len",
        ),
        (
            {"model": Gemma3Settings(max_position_embeddings=64)},
            "longest request has 124 tokens, more than the 64 of the model",
        ),
        ({"pool": PoolSettings(num_blocks=4)}, "blocks"),
        ({"model": Gemma3Settings(model_type="gemma9")}, "unknown model_type 'gemma9'"),
        (
            {"model": Gemma3Settings(vocab_size=1 << 24, hidden_size=1 << 24)},
            "allocate memory",
        ),
        ({"pool": PoolSettings(num_blocks=None, memory="1000000GiB")}, "allocate memory"),
        ({"device": "meta"}, "device: 'meta' cannot be used: "),
        ({"device": "cpu:99999999999"}, "device: 'cpu:99999999999' cannot be used: "),
    ],
)
def test_settings_that_do_not_go_together_are_refused_before_anything_is_written(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        run(settings(**changes), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    with pytest.raises(InputError, match="must be new or empty"):
        run(settings(workload=Random(requests=1)), tmp_path)
    assert [place.name for place in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("name", ["config.yaml", "summary.json", "outputs.jsonl", "hits.png"])
def test_a_record_is_none_of_the_runs_own_files(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"record: the run itself writes {name} into its folder"):
        run(settings(record=str(tmp_path / name)), tmp_path)
    assert list(tmp_path.iterdir()) == []
    run(settings(record=str(tmp_path / "calls.jsonl"), workload=Random(requests=1)), tmp_path)
    assert (tmp_path / "calls.jsonl").is_file()
