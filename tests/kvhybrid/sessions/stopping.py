"""Parts that end their run: by an exception, by a real signal to their own process, by waiting."""

from __future__ import annotations

import builtins
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvhybrid.replay.arrivals import Arrival, Arrivals, OneByOne
from kvhybrid.replay.trace import TraceRequest
from kvhybrid.tracking.base import Tracker


@dataclass(kw_only=True)
class Stopping(Tracker):
    """Acts at its ``at``-th line, unless the environment variable ``STOPPING`` is ``off``."""

    how: str
    """The name of a built-in exception or of a signal, or ``wait``: until the file ``go`` is in the run folder."""
    at: int = 2
    num_blocks: int | None = None
    """The pool of the only run that is stopped; None for all."""

    def start(self, config: Mapping[str, Any], folder: Path) -> None:
        self._lines = 0
        self._folder = folder
        here = self.num_blocks in (None, config["pool"]["num_blocks"])
        self._acts = here and os.environ.get("STOPPING") != "off"

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._lines += 1
        if not self._acts or self._lines != self.at:
            return
        if self.how.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, self.how))
        elif self.how == "wait":
            (self._folder / "waiting").touch()
            while not (self._folder / "go").exists():
                time.sleep(0.01)
        else:
            raise getattr(builtins, self.how)

    def finish(self, summary: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Crashing(OneByOne):
    """Fails in the middle of a replay, as a plug-in with a bug does."""

    def arrivals(self, requests: Sequence[TraceRequest]) -> Arrivals:
        return _Crash(super().arrivals(requests))


class _Crash(Arrivals):
    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._left = 10

    def take(self, now: float, idle: bool) -> list[Arrival]:
        taken = self._arrivals.take(now, idle)
        self._left -= len(taken)
        if not self._left:
            raise RuntimeError("a bug in\nthe plug-in")
        return taken


STOPPING = f"{Stopping.__module__}:{Stopping.__qualname__}"
CRASHING = f"{Crashing.__module__}:{Crashing.__qualname__}"
