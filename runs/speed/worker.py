"""The worker processes, both ends of their pipes: one process for each environment runs works on its sides, one
run at a time, as it is told. Each message is one line of JSON.

Imports the standard library and this folder alone, since the peers' environments have nothing else of ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from runs.speed.side import Run, Side
from runs.speed.works import Size

ROOT = Path(__file__).resolve().parents[2]
SIDES = {
    "ours": "runs.speed.ours:Ours",
    "ours, all on": "runs.speed.ours:OursWatching",
    "vllm": "runs.speed.vllm_peer:VLLM",
    "vllm, events": "runs.speed.vllm_peer:VLLMWithEvents",
    "sglang": "runs.speed.sglang_peer:RadixTree",
    "sglang core": "runs.speed.sglang_peer:CompiledCore",
}
ENVIRONMENTS = {
    "ours": "ours",
    "ours, all on": "ours",
    "vllm": "vllm",
    "vllm, events": "vllm",
    "sglang": "sglang",
    "sglang core": "sglang",
}
"""The environment of each side: the interpreter that runs the benchmark, or a folder of ``setup_peers.sh``."""

START = """
import sys
root, side = sys.argv[1:]
sys.path[:] = [*filter(None, sys.path), root]  # last: what is installed comes before the sources of this checkout
from runs.speed.worker import main
main(side)
"""


# ---- in the worker process


def make_side(name: str) -> Side:
    module, kind = SIDES[name].split(":")
    side: Side = getattr(import_module(module), kind)()
    return side


class Answers:
    """Opens works and runs them on the sides of this process."""

    def __init__(self) -> None:
        self._sides: dict[str, Side] = {}
        self._opened: dict[str, Iterator[Run]] = {}

    def to(self, command: dict[str, Any]) -> Any:
        """``open``: the side's version. ``run``: what the next run of its open work took. ``close``: nothing."""
        name = command["side"]
        if command["do"] == "run":
            return asdict(next(self._opened[name]))
        self._opened.pop(name, None)
        if command["do"] == "close":
            return None
        side = self._side(name)
        self._opened[name] = side.open(command["work"], Size(**command["size"]))
        return side.version()

    def _side(self, name: str) -> Side:
        if name not in self._sides:
            self._sides[name] = make_side(name)
        return self._sides[name]


def main(name: str) -> None:
    """Serve commands from standard input until it ends; side ``name`` is imported before the first."""
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a package prints does not get between our lines
    import_module(SIDES[name].split(":")[0])
    print(json.dumps("ready"), file=pipe, flush=True)
    answers = Answers()
    for line in sys.stdin:
        print(json.dumps(answers.to(json.loads(line))), file=pipe, flush=True)


# ---- in the process that tells it


class MissingEnvironmentError(RuntimeError):
    """An environment that is not set up or does not start."""


class WorkerProcess:
    """One environment's process, which waits between its runs."""

    def __init__(self, name: str, side: str, python: str, source: str | None = None) -> None:
        """Start it. Importing takes time: see `wait`.

        Args:
            name: What messages call it.
            side: A side of this environment, imported at the start.
            python: The environment's interpreter. If its kvhybrid is an editable installation, the checkout that
                this points to provides runs.speed as well; otherwise this checkout does.
            source: A folder whose packages come before those of the environment.
        """
        self._name = name
        quiet = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
        path = {"PYTHONPATH": source} if source else {}
        self._errors = TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - it lives as long as the process
        try:
            self._process = subprocess.Popen(
                [python, "-c", START, str(ROOT), side],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                cwd=ROOT,
                env={**os.environ, **quiet, **path},
            )
        except OSError as error:
            self._errors.close()
            raise MissingEnvironmentError(f"{name}: {python}: {error.strerror}") from error

    def wait(self) -> None:
        """Until it can be asked.

        Raises:
            MissingEnvironmentError: It ended instead.
        """
        try:
            self._answer()
        except RuntimeError as error:
            raise MissingEnvironmentError(str(error)) from error

    def ask(self, command: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        print(json.dumps(command), file=self._process.stdin, flush=True)
        return self._answer()

    def end(self) -> None:
        self._process.communicate()
        self._errors.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._process.wait()
        self._errors.seek(0)
        errors = [line for line in self._errors if "Error" in line]
        raise RuntimeError(f"{self._name} ended: {errors[-1].strip() if errors else 'it named no error'}")


class Worker:
    """One side of a worker process."""

    def __init__(self, side: str, process: WorkerProcess) -> None:
        self.side = side
        self.version = ""
        """Its packages, known once a work was opened."""
        self._process = process

    def open(self, work: str, size: Size) -> None:
        """Prepare a work in place of the one before it."""
        self.version = self._process.ask({"do": "open", "side": self.side, "work": work, "size": asdict(size)})

    def run(self) -> Run:
        return Run(**self._process.ask({"do": "run", "side": self.side}))

    def close(self) -> None:
        """Drop the work."""
        self._process.ask({"do": "close", "side": self.side})


@contextmanager
def working(sides: Sequence[str], peers: Path | None) -> Iterator[tuple[dict[str, Worker], list[str]]]:
    """The workers that could be started, and for each missing environment the reason."""
    started: dict[str, WorkerProcess] = {}
    skipped: dict[str, str] = {}
    for side in sides:
        name = ENVIRONMENTS[side]
        try:
            if name not in started and name not in skipped:
                started[name] = WorkerProcess(name, side, *_environment(name, peers))
        except MissingEnvironmentError as error:
            skipped[name] = str(error)
    try:
        for name, process in list(started.items()):
            try:
                process.wait()
            except MissingEnvironmentError as error:
                skipped[name] = str(error)
                started.pop(name).end()
        workers = {s: Worker(s, started[ENVIRONMENTS[s]]) for s in sides if ENVIRONMENTS[s] in started}
        yield workers, list(skipped.values())
    finally:
        for process in started.values():
            process.end()


def _environment(name: str, peers: Path | None) -> tuple[str, str | None]:
    """Interpreter and source folder of an environment."""
    if name == "ours":
        return sys.executable, None
    if peers is None:
        raise MissingEnvironmentError(f"{name} is not there: no folder of peers was given")
    python, source = peers / name / "venv" / "bin" / "python", peers / name / "src"
    if not python.exists() or not source.exists():
        raise MissingEnvironmentError(
            f"{name} is not there: the folder of peers has no {name}/venv and {name}/src"
        )
    return str(python), str(source)
