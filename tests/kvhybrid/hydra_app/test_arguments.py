"""The command line of the Hydra verbs: flags anywhere, one line for what is no flag, tracebacks when asked for."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kvhybrid.cli import main
from kvhybrid.errors import InputError
from kvhybrid.hydra_app.arguments import flags_first

ROOT = Path(__file__).resolve().parents[3]
TRACE = f"trace.path={ROOT / 'tests' / 'kvhybrid' / 'replay' / 'small_trace.jsonl'}"


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["a=1", "b=2"], ["a=1", "b=2"]),
        (["a=1", "--config-dir", "D", "b=2"], ["--config-dir", "D", "a=1", "b=2"]),
        (["a=1", "-cd", "D", "b=2", "-m"], ["-cd", "D", "-m", "a=1", "b=2"]),
        (["a=1", "--config-dir=D", "-c", "job", "b=2"], ["--config-dir=D", "-c", "job", "a=1", "b=2"]),
        (["a=1", "--config-dir", "a=1", "b=2"], ["--config-dir", "a=1", "a=1", "b=2"]),
        (["install=bash", "-sc"], ["-sc", "install=bash"]),
    ],
)
def test_flags_may_stand_anywhere(given: list[str], read: list[str]) -> None:
    assert flags_first("run", given) == read


def test_a_folder_of_configs_may_be_named_behind_an_override(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / "mine.yaml").write_text("block_size: 8\nnum_blocks: 77\n")
    assert main(["run", "pool=mine", "--config-dir", str(tmp_path), "seed=3", "--cfg", "job"]) == 0
    printed = capsys.readouterr().out
    assert "num_blocks: 77" in printed
    assert "seed: 3" in printed


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--foo"], "unrecognized arguments: --foo"),
        (["pool=blocks", "--config-dri", ".", "seed=1"], "unrecognized arguments: --config-dri"),
        (["--config-dir"], "--config-dir/-cd: expected one argument"),
        (["--config-dir", "nowhere"], "'{here}/nowhere' not found"),
        (["--cfg"], "--cfg/-c: expected one argument"),
        (["--cfg", "jobb"], "invalid choice: 'jobb'"),
        (["--info", "seed=1"], "invalid choice: 'seed=1'"),
        (["--multi"], "unrecognized arguments: --multi"),
        (["-m", "--run"], "Only one of --run, --multirun"),
        (["--resolve"], "--resolve flag can only be used in conjunction with --cfg"),
        (["--package", "pool"], "--package is only accepted with --cfg"),
        (["--experimental-rerun", "x.pickle"], "is not accepted, since it unpickles a file"),
        (["name='\udcff'"], "not UTF-8 text"),
        (["pool.num_blocks=" + "9" * 5_000], "cannot read pool.num_blocks=999"),
    ],
)
def test_misuse_of_a_flag_is_one_line(
    flags: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["replay", *flags]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("kvhybrid replay: ")
    assert said.format(here=tmp_path) in line
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


def test_no_pickle_is_ever_loaded() -> None:
    for spelling in (["--experimental-rerun", "x"], ["--experimental-rerun=x"]):
        with pytest.raises(InputError, match="unpickles"):
            flags_first("run", ["a=1", *spelling])


@pytest.mark.parametrize(
    ("arguments", "origin"),
    [
        (["replay", "pool.blok_size=1"], "ConfigAttributeError"),
        (["replay", TRACE, "pool.block_size=0"], "ValueError"),
        (["replay", TRACE, "-m", "pool.block_size=0,-1"], "ValueError"),
        (["scenario", "nothing.jsonl"], "ScenarioError"),
    ],
)
def test_a_traceback_is_shown_when_asked_for(
    arguments: list[str],
    origin: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    assert main(arguments) == 2
    plain = capsys.readouterr().err
    assert "Traceback" not in plain
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    assert main(arguments) == 2
    full = capsys.readouterr().err
    assert "Traceback" in full
    assert f"{origin}: " in full
    assert full.splitlines()[-1] == plain.splitlines()[-1]


@pytest.mark.parametrize(
    ("choice", "written"),
    [
        ("hydra.output_subdir=.hydra", ".hydra"),
        ("hydra.output_subdir=what_hydra_was_told", "what_hydra_was_told"),
        ("hydra.output_subdir=what/hydra/was_told", "what"),
        ("hydra/job_logging=default", "replay.log"),
    ],
)
@pytest.mark.parametrize("sweeping", [[], ["-m"]])
def test_what_hydra_writes_before_a_run_does_not_stop_it(
    sweeping: list[str], choice: str, written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    folders = [f"hydra.run.dir={tmp_path}/0", f"hydra.sweep.dir={tmp_path}"]
    assert main(["replay", TRACE, "trace.limit=2", choice, *folders, *sweeping]) == 0
    names = {place.name for place in (tmp_path / "0").iterdir()}
    assert names == {written, "config.yaml", "provenance.json", "hits.png", "metrics.jsonl", "summary.json"}


def test_a_log_or_a_folder_of_anyone_else_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    assert main(["replay", TRACE, f"hydra.run.dir={tmp_path}"]) == 2
    assert "must be new or empty" in capsys.readouterr().err


ORDER = """
from kvhybrid.managers.eviction.lru import LRU

class Mine(LRU):
    pass
"""


def test_a_module_in_the_current_folder_is_found_behind_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_order_of_reuse.py").write_text(ORDER)
    Path("tabnanny.py").write_text("raise SystemExit('hides the standard library')")
    assert main(["replay", TRACE, "trace.limit=2", "eviction=my_order_of_reuse:Mine"]) == 0
    tiny = ["model=gemma3_tiny", "workload=random", "workload.requests=1", "tracking=none"]
    assert main(["run", *tiny, "eviction=my_order_of_reuse:Mine"]) == 0
    assert main(["replay", TRACE, "trace.limit=2", "eviction=my_order_of_reuse:Nobody"]) == 2
    assert "Nobody" in capsys.readouterr().err
    assert main(["replay", TRACE, "trace.limit=2", "eviction=tabnanny:Nobody"]) == 2
