"""The worker processes, one an environment, and where the peers live."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from runs.speed.side import Run
from runs.speed.works import Size

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = {
    "ours": "ours",
    "ours, all on": "ours",
    "vllm": "vllm",
    "vllm, events": "vllm",
    "sglang": "sglang",
    "sglang core": "sglang",
}
"""For every side its environment: this one, or the folder that ``setup_peers.sh`` made."""


class MissingPeerError(RuntimeError):
    """A peer that is not set up here."""


class WorkerProcess:
    """The sides of one environment, in a process that waits between their runs."""

    def __init__(self, side: str, peers: Path | None) -> None:
        """Raises `MissingPeerError` where there is no such environment. Importing takes time: see `wait`."""
        self._name = ENVIRONMENTS[side]
        python, paths = sys.executable, [str(ROOT)]
        if self._name != "ours":
            python, source = _peer(self._name, peers)
            paths.insert(0, source)
        quiet = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
        self._said = TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            [python, "-m", "runs.speed.worker", side],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            cwd=ROOT,
            env={**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(paths)},
        )

    def wait(self) -> None:
        """Until it can be asked. Raises `MissingPeerError` where it does not start."""
        try:
            self._answer()
        except RuntimeError as error:
            raise MissingPeerError(str(error)) from error

    def ask(self, command: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        print(json.dumps(command), file=self._process.stdin, flush=True)
        return self._answer()

    def end(self) -> None:
        self._process.communicate()
        self._said.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._process.wait()
        self._said.seek(0)
        errors = [said for said in self._said if "Error" in said]
        raise RuntimeError(f"{self._name} ended: {errors[-1].strip() if errors else 'it named no error'}")


class Worker:
    """One side of a worker process."""

    def __init__(self, side: str, process: WorkerProcess) -> None:
        self.side = side
        self.version = ""
        """Its packages, once a work was opened."""
        self._process = process

    def open(self, work: str, size: Size) -> None:
        """Prepare a work, and forget the one before it."""
        self.version = self._process.ask({"do": "open", "side": self.side, "work": work, "size": asdict(size)})

    def run(self) -> Run:
        return Run(**self._process.ask({"do": "run", "side": self.side}))

    def close(self) -> None:
        """Forget the work."""
        self._process.ask({"do": "close", "side": self.side})


@contextmanager
def working(sides: Sequence[str], peers: Path | None) -> Iterator[tuple[dict[str, Worker], list[str]]]:
    """The workers that there are, and why the others are not there."""
    started: dict[str, WorkerProcess] = {}
    skipped: dict[str, str] = {}
    for side in sides:
        name = ENVIRONMENTS[side]
        try:
            if name not in started and name not in skipped:
                started[name] = WorkerProcess(side, peers)
        except MissingPeerError as error:
            skipped[name] = str(error)
    try:
        for name, process in list(started.items()):
            try:
                process.wait()
            except MissingPeerError as error:
                skipped[name] = str(error)
                started.pop(name).end()
        workers = {s: Worker(s, started[ENVIRONMENTS[s]]) for s in sides if ENVIRONMENTS[s] in started}
        yield workers, list(skipped.values())
    finally:
        for process in started.values():
            process.end()


def _peer(name: str, peers: Path | None) -> tuple[str, str]:
    """Python and the source folder of a peer."""
    if peers is None:
        raise MissingPeerError(f"{name} is not there: no folder of peers was given")
    python, source = peers / name / "venv" / "bin" / "python", peers / name / "src"
    if not python.exists() or not source.exists():
        raise MissingPeerError(f"{name} is not there: the folder of peers has no {name}/venv and {name}/src")
    return str(python), str(source)
