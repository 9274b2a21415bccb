"""A run folder belongs to one process, and says how the run in it ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvhybrid.errors import OutputError
from kvhybrid.run_folder import CLAIM, SUMMARY, FolderTakenError, RunFolder

FILL = """
import sys
from kvhybrid.run_folder import RunFolder
with RunFolder(sys.argv[1]).claimed(["seed=1"]):
    print("claimed", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that fills ``folder`` until its stdin is closed."""
    command = [sys.executable, "-c", FILL, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "claimed\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_folder_that_another_process_fills_is_refused_and_left_alone(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with another_process(folder.path):
        assert folder.outcome() == {
            "status": "running",
            "reason": "another process is writing to the folder",
            "overrides": ["seed=1"],
        }
        with pytest.raises(FolderTakenError, match="another process is writing to the run"), folder.claimed():
            pass
        assert [place.name for place in folder.path.iterdir()] == [CLAIM]


def test_a_process_that_is_killed_leaves_a_mark_and_no_lock(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with another_process(folder.path) as process:
        process.kill()
        process.wait()
        outcome = folder.outcome()
        assert outcome is not None
        assert (outcome["status"], outcome["overrides"]) == ("failed", ["seed=1"])
        assert "killed" in outcome["reason"]
        with folder.claimed():
            folder.require_empty()
    assert folder.outcome() is None


def test_of_many_processes_that_start_at_once_one_gets_the_folder(tmp_path: Path) -> None:
    code = """
import sys
from kvhybrid.run_folder import FolderTakenError, RunFolder
folder = RunFolder(sys.argv[1])
sys.stdin.read()
try:
    with folder.claimed():
        folder.require_empty()
        folder.write_json("summary.json", {"status": "done"})
        print("filled")
except FolderTakenError:
    print("refused")
"""
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    said = sorted(process.stdout.read().strip() for process in processes if process.stdout is not None)
    for process in processes:
        process.wait()
    assert said == ["filled", "refused", "refused", "refused"]
    assert [place.name for place in (tmp_path / "run").iterdir()] == [SUMMARY]


def test_a_claim_that_wrote_nothing_leaves_nothing(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "some" / "run").claimed():
        pass
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with RunFolder(tmp_path / "mine").claimed():
        pass
    assert [place.name for place in tmp_path.iterdir()] == ["mine"], "a folder that was there stays"


def test_a_foreign_file_is_never_claimed_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    folder = RunFolder(tmp_path)
    with pytest.raises(FolderTakenError, match="must be new or empty"), folder.claimed():
        folder.require_empty()
    assert [place.name for place in tmp_path.iterdir()] == ["mine.txt"]
    assert folder.outcome() is None


def test_a_place_that_can_hold_no_folder_is_an_error_of_output(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot be created"), RunFolder(tmp_path / "file" / "run").claimed():
        pass


@pytest.mark.parametrize("content", ["", "{", '{"status": "do'])
def test_a_summary_that_was_cut_short_is_that_of_a_failed_run(content: str, tmp_path: Path) -> None:
    (tmp_path / SUMMARY).write_text(content)
    (tmp_path / CLAIM).write_text(json.dumps(["seed=1"]))
    outcome = RunFolder(tmp_path).outcome()
    assert outcome is not None
    assert outcome["status"] == "failed"


def test_what_a_run_left_can_be_cleared_while_it_is_claimed(tmp_path: Path) -> None:
    (tmp_path / "wandb" / "run").mkdir(parents=True)
    (tmp_path / "metrics.jsonl").touch()
    os.symlink(tmp_path / "wandb", tmp_path / "latest")
    folder = RunFolder(tmp_path)
    with folder.claimed():
        folder.clear()
        folder.require_empty()
        assert [place.name for place in tmp_path.iterdir()] == [CLAIM]
