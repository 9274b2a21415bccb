"""Plug-ins that fail, each in the way that its parameter ``how`` says."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kvhybrid.managers.eviction.lru import LRU
from kvhybrid.replay.arrivals import Arrivals, OneByOne
from kvhybrid.replay.cost import LinearCost
from kvhybrid.replay.trace import Trace, TraceRequest
from kvhybrid.scheduling.base import SchedulerOutput
from kvhybrid.scheduling.scheduler import Scheduler
from kvhybrid.tracking.base import Tracker
from kvhybrid.workloads.base import PromptList
from kvhybrid.workloads.random import Random

GOOD = [TraceRequest(f"r{i}", float(i), 40, 3, np.arange(3)) for i in range(4)]
TRACES: Mapping[str, Any] = {
    "good": GOOD,
    "empty": [],
    "none": None,
    "words": ["one"],
    "twins": [GOOD[0], GOOD[0]],
    "no_output": [replace(GOOD[0], num_output_tokens=0)],
    "no_prompt": [replace(GOOD[0], num_prompt_tokens=0)],
    "late": [replace(GOOD[0], seconds=float("nan"))],
    "short": [replace(GOOD[0], prefix_ids=np.arange(2))],
}


class Idle(Scheduler):
    """Schedules nothing, from the step ``after`` on."""

    def __init__(self, cache: Any, *, after: int = 0, **more: Any) -> None:
        super().__init__(cache, **more)
        self.left = after

    def schedule(self) -> SchedulerOutput:
        self.left -= 1
        return super().schedule() if self.left >= 0 else SchedulerOutput((), (), (), (), 0)


class Patient(Scheduler):
    """Computes only in every fifth step."""

    def __init__(self, cache: Any, **more: Any) -> None:
        super().__init__(cache, **more)
        self.step = 0

    def schedule(self) -> SchedulerOutput:
        self.step += 1
        return super().schedule() if self.step % 5 == 0 else SchedulerOutput((), (), (), (), 0)


class Raising(Scheduler):
    """Raises in the step ``at``."""

    def __init__(self, cache: Any, *, at: int = 3, **more: Any) -> None:
        super().__init__(cache, **more)
        self.left = at

    def schedule(self) -> SchedulerOutput:
        self.left -= 1
        if not self.left:
            raise KeyError("oldest")
        return super().schedule()


class Forgetful(LRU):
    """Raises as soon as a block is freed."""

    def append(self, ids: Any, release: int) -> None:
        raise IndexError("no such place")


@dataclass(kw_only=True)
class Recorded(Trace):
    """One of `TRACES`, or an exception."""

    how: str = "good"

    @property
    def part_tokens(self) -> int:
        return 16

    @property
    def place(self) -> Path:
        return Path("nowhere.csv")

    def read(self) -> list[TraceRequest]:
        if self.how == "os_error":
            open("/no/such/file").close()
        if self.how == "value_error":
            raise ValueError("could not convert string to float: 'x'")
        if self.how == "exit":
            raise SystemExit(3)
        found: list[TraceRequest] = TRACES[self.how]
        return found


@dataclass(frozen=True, kw_only=True)
class Odd(LinearCost):
    """Costs ``how`` seconds, or raises."""

    how: str = "nan"

    def seconds(self, prefill_tokens: int, decode_tokens: int, context_tokens: int) -> Any:
        return None if self.how == "none" else float(self.how)


@dataclass(frozen=True, kw_only=True)
class Lossy(OneByOne):
    """Loses the last request."""

    def arrivals(self, requests: Sequence[TraceRequest]) -> Arrivals:
        return super().arrivals(requests[:-1])


@dataclass(kw_only=True)
class Wrong(Random):
    """Random prompts with a mistake."""

    how: str = "fewer"

    def traffic(self, vocab_size: int) -> Any:
        requests = super().traffic(vocab_size).ready()
        if self.how == "raise":
            raise OSError("prompts.txt is gone")
        if self.how == "none":
            return None
        if self.how == "late":
            return _Late(requests)
        if self.how == "tuples":
            return PromptList([("name", [1], 2)])  # type: ignore[list-item]
        return PromptList(
            requests[1:] if self.how == "fewer" else [*requests, replace(requests[0], request_id="x")]
        )


class _Late(PromptList):
    def finished(self, request_id: str, output_token_ids: Sequence[int]) -> None:
        raise RuntimeError("a bug in\nthe traffic")


@dataclass(kw_only=True)
class KilledOnce(Tracker):
    """Kills its process at the second line, unless the file ``flag`` is there."""

    flag: str

    def start(self, config: Mapping[str, Any], folder: Path) -> None:
        self._lines = 0

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._lines += 1
        if self._lines == 2 and not Path(self.flag).exists():
            Path(self.flag).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def finish(self, summary: Mapping[str, Any]) -> None: ...


PLACE = Idle.__module__
