"""Weights & Biases: the metrics as a wandb run, offline unless the environment says otherwise.

wandb runs in a separate process, so that neither an interrupt nor a hanging wandb can block the run.
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

MOST_PATIENCE = 2_000_000
"""Seconds: `poll` counts milliseconds in 31 bits."""


@dataclass(kw_only=True)
class WandbTracker(Tracker):
    """Stores the run in ``wandb/`` in the run folder; ``wandb sync`` uploads it later.

    ``WANDB_MODE`` in the environment (online, offline, shared, disabled) overrides the default, offline.
    """

    project: str = "kvhybrid"
    name: str | None = None
    """Name of the run; if None, wandb chooses one."""
    tags: list[str] = field(default_factory=list)
    patience: float = 60.0
    """Seconds to wait for wandb to start, to accept a step, and to finish, which may include an upload."""

    def __post_init__(self) -> None:
        if not 0 < self.patience <= MOST_PATIENCE:
            raise ValueError(
                f"tracking.wandb.patience must be more than 0 and at most {MOST_PATIENCE:,}, found {self.patience}"
            )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, config: Mapping[str, Any], folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path}; from {__name__} import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # the terminal's Ctrl-C is for the run, which then ends wandb
        )
        try:
            self._send(
                project=self.project,
                name=without_folders(self.name),
                tags=without_folders(self.tags),
                config=config,
                dir=str(folder),
            )
            self._wait_for_answer(self._process)
        except KeyboardInterrupt:
            self._process.kill()
            raise

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._send(step=step, metrics=metrics)

    def finish(self, summary: Mapping[str, Any]) -> None:
        process = self._send(summary=summary)
        self._wait_for_answer(process)
        try:
            process.communicate(timeout=self.patience)
        except subprocess.TimeoutExpired:
            raise self._given_up(process) from None

    def _send(self, **message: Any) -> subprocess.Popen[bytes]:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None  # noqa: PT018
        if _is_ready(process.stdout.fileno(), select.POLLIN, 0):
            self._wait_for_answer(process)  # wandb only sends a message without a request to report an error
        pipe = process.stdin.fileno()
        os.set_blocking(pipe, False)
        line = (json.dumps(message) + "\n").encode()
        while line:
            if not _is_ready(pipe, select.POLLOUT, self.patience):
                raise self._given_up(process)
            try:
                line = line[os.write(pipe, line) :]
            except BrokenPipeError:
                self._wait_for_answer(process)
        return process

    def _wait_for_answer(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for wandb's answer to a message. Raises `TrackerError` if it reports an error."""
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
    """The wandb process: the first line on stdin starts the wandb run, the last one ends it, the others log a
    step.

    Answers the first and the last line with `DONE`, and an error with its message. If the input ends without the
    last line, the run was killed.
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
        host="",  # otherwise wandb records the machine's name
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
