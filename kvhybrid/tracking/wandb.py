"""Weights & Biases: the same figures as a wandb run, offline unless the environment says otherwise.

wandb runs in a process of its own, so that neither an interrupt nor a wandb that hangs can hold up the run.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvhybrid.tracking.base import Tracker, TrackerError, reason_of
from kvhybrid.tracking.paths import without_folders


@dataclass(kw_only=True)
class WandbTracker(Tracker):
    """Keeps the run under ``wandb/`` in the run folder; ``wandb sync`` uploads it later.

    A ``WANDB_MODE`` in the environment (online, offline, shared, disabled) wins over offline.
    """

    project: str = "kvhybrid"
    name: str | None = None
    """Name of the run; wandb makes one up where it is not given."""
    tags: list[str] = field(default_factory=list)
    patience: float = 60.0
    """Seconds to wait for wandb when it starts, when it takes a step, and when it ends and may have to upload."""

    def __post_init__(self) -> None:
        if self.patience <= 0:
            raise ValueError(f"tracking.wandb.patience must be more than 0, found {self.patience}")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, config: Mapping[str, Any], folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path}; from {__name__} import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # the terminal's Ctrl-C is for the run, which tells wandb in time
        )
        try:
            self._tell(
                project=self.project,
                name=without_folders(self.name),
                tags=without_folders(self.tags),
                config=config,
                dir=str(folder),
            )
            self._hear(self._process)
        except KeyboardInterrupt:
            self._process.kill()
            raise

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._tell(step=step, metrics=metrics)

    def finish(self, summary: Mapping[str, Any]) -> None:
        process = self._tell(summary=summary)
        self._hear(process)
        try:
            process.communicate(timeout=self.patience)
        except subprocess.TimeoutExpired:
            raise self._given_up(process) from None

    def _tell(self, **message: Any) -> subprocess.Popen[bytes]:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None  # noqa: PT018
        if _is_ready(process.stdout.fileno(), select.POLLIN, 0):
            self._hear(process)  # unasked, wandb only tells of an error
        pipe = process.stdin.fileno()
        os.set_blocking(pipe, False)
        line = (json.dumps(message) + "\n").encode()
        while line:
            if not _is_ready(pipe, select.POLLOUT, self.patience):
                raise self._given_up(process)
            try:
                line = line[os.write(pipe, line) :]
            except BrokenPipeError:
                self._hear(process)
        return process

    def _hear(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until wandb has done what it was told. Raises `TrackerError` where it could not."""
        assert process.stdout is not None
        if not _is_ready(process.stdout.fileno(), select.POLLIN, self.patience):
            raise self._given_up(process)
        answer = process.stdout.readline()
        if answer != DONE:
            process.kill()
            process.communicate()
            raise TrackerError(answer.decode().strip() or "the process of wandb has ended")

    def _given_up(self, process: subprocess.Popen[bytes]) -> TrackerError:
        process.kill()
        process.communicate()
        return TrackerError(f"wandb did not answer for {self.patience:g} s (tracking.wandb.patience)")


def _is_ready(descriptor: int, event: int, seconds: float) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, event)
    return bool(waiting.poll(1000 * seconds))


DONE = b"done\n"


def serve() -> None:
    """The process of wandb: the first line on stdin starts its run, the others log a step each, the last ends it.

    Answers the first and the last line by `DONE`, and an error by its message. Where the lines end without the
    last one, the run has been killed.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    answers = os.dup(1)
    os.dup2(2, 1)  # wandb may print
    try:
        run = _start(**json.loads(sys.stdin.readline()))
        os.write(answers, DONE)
        for line in sys.stdin:
            message = json.loads(line)
            if "summary" in message:
                run.summary.update(message["summary"])
                run.finish(exit_code=int(message["summary"]["status"] != "done"))
                os.write(answers, DONE)
                return
            run.log(message["metrics"], step=message["step"])
        run.finish(exit_code=1)
    except Exception as error:
        os.write(answers, reason_of(error).encode())


def _start(*, dir: str, **chosen: Any) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise TrackerError(f"wandb cannot be imported: {error}; choose tracking=jsonl") from error
    quiet = wandb.Settings(
        host="",  # else wandb asks the machine for its name
        silent=True,
        quiet=True,
        console="off",
        show_errors=False,
        show_warnings=False,
        show_info=False,
        disable_git=True,
        disable_code=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    mode: Any = os.environ.get("WANDB_MODE") or "offline"
    return wandb.init(**chosen, dir=dir, mode=mode, reinit="create_new", settings=quiet)
