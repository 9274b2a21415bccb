"""Standard output and error may be closed, cut off or on a full disk: files and exit codes stay what they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "tests" / "kvhybrid" / "replay" / "small_trace.jsonl"
FILES = {"config.yaml", "hits.png", "metrics.jsonl", "provenance.json", "summary.json"}
REPLAY = f"{sys.executable} -m kvhybrid replay trace.path={TRACE} hydra.run.dir=run"
REFUSED = f"{REPLAY} pool.num_blocks=3"


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What bash says of the first command of a pipe."""
    script = f"{command}; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("where", "code", "said"),
    [
        (">&- 2>&-", 0, ""),
        ("2>&1 | head -1", 0, "llama one_by_one: 30 requests"),
        (">/dev/full", 1, "kvhybrid replay: stdout: No space left on device"),
    ],
)
def test_a_replay_is_whole_whatever_becomes_of_its_output(
    where: str, code: int, said: str, tmp_path: Path
) -> None:
    done = shell(f"{REPLAY} {where}", tmp_path)
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert {place.name for place in (tmp_path / "run").iterdir()} == FILES


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_standard_error_is_seen_at_once(unbuffered: str) -> None:
    code = """
import sys
from kvhybrid.streams import lasting_streams
with lasting_streams():
    print("first", file=sys.stderr)
    print("second", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONUNBUFFERED": unbuffered, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.stdout == b"first\nsecond\n"


@pytest.mark.parametrize("where", [">&- 2>&-", "2>&1 | true", "2>/dev/full"])
def test_a_refusal_keeps_its_exit_code(where: str, tmp_path: Path) -> None:
    done = shell(f"{REFUSED} {where}", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_has_gone_does_not_end_a_sweep(tmp_path: Path) -> None:
    replay = REPLAY.replace("hydra.run.dir", "hydra.sweep.dir")
    done = shell(f"{replay} -m pool.num_blocks=3,20,300 track_misses=false 2>&1 | head -1", tmp_path)
    assert done.returncode == 2
    assert {place.name for place in (tmp_path / "run").iterdir()} == {*"012", "multirun.yaml", "sweep.json"}


def test_what_is_opened_next_never_becomes_a_closed_stream(tmp_path: Path) -> None:
    code = """
import os, sys
from kvhybrid.streams import lasting_streams
with lasting_streams():
    with open("file", "w") as file:
        print("to stdout")
        print("to stderr", file=sys.stderr)
        os.system("echo of a child")
        assert file.fileno() > 2
"""
    (tmp_path / "code.py").write_text(code)
    assert shell(f"{sys.executable} code.py >&- 2>&-", tmp_path).returncode == 0
    assert (tmp_path / "file").read_text() == ""


def test_text_keeps_its_order_and_its_encoding(tmp_path: Path) -> None:
    code = """
import sys
from kvhybrid.streams import lasting_streams
print("before")
with lasting_streams() as lost:
    print("ä", flush=True)
    with lasting_streams():
        print("within", end=" ")
    assert sys.stdout.encoding == "iso8859-1"
    assert sys.stdout.line_buffering is False
print("after", lost)
"""
    (tmp_path / "code.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "code.py"],
        cwd=tmp_path,
        capture_output=True,
        env={"PYTHONIOENCODING": "latin-1", "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.stdout == b"before\n\xe4\nwithin after []\n"
