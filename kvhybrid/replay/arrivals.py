"""Arrival processes: when the requests of a trace are sent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvhybrid.replay.trace import TraceRequest
from kvhybrid.settings.values import at_least


class Arrival(NamedTuple):
    """A request and the modelled second at which it came in."""

    seconds: float
    request: TraceRequest


class Arrivals(ABC):
    """The requests of one replay, handed out as the modelled clock moves on."""

    @abstractmethod
    def take(self, now: float, idle: bool) -> list[Arrival]:
        """The requests that have arrived by ``now`` and were not taken before. When the scheduler is ``idle``, the
        next ones, even if they arrive later: the clock then jumps to that second. An empty list is the end."""


class ArrivalProcess(ABC):
    """Decides when the requests of a trace arrive.

    Subclasses are dataclasses whose fields are the keys of ``conf/executor/<name>.yaml``.
    """

    @abstractmethod
    def arrivals(self, requests: Sequence[TraceRequest]) -> Arrivals:
        """A fresh start of the trace."""


@dataclass(frozen=True, kw_only=True)
class OneByOne(ArrivalProcess):
    """Each request starts when the one before it has ended; the times of the trace do not count."""

    def arrivals(self, requests: Sequence[TraceRequest]) -> Arrivals:
        return _Queue(requests)


class _Queue(Arrivals):
    def __init__(self, requests: Sequence[TraceRequest]) -> None:
        self._requests = iter(requests)

    def take(self, now: float, idle: bool) -> list[Arrival]:
        following = next(self._requests, None) if idle else None
        return [] if following is None else [Arrival(now, following)]


@dataclass(frozen=True, kw_only=True)
class OpenLoop(ArrivalProcess):
    """Requests come in at the times of the trace, whatever the backlog. ``time_scale`` stretches these times:
    0.5 is twice the load."""

    time_scale: float = 1.0

    def __post_init__(self) -> None:
        at_least("executor.time_scale", self.time_scale, 0)

    def arrivals(self, requests: Sequence[TraceRequest]) -> Arrivals:
        ordered = sorted(requests, key=lambda request: request.seconds)
        return _Timetable(deque(Arrival(request.seconds * self.time_scale, request) for request in ordered))


class _Timetable(Arrivals):
    def __init__(self, arrivals: deque[Arrival]) -> None:
        self._waiting = arrivals

    def take(self, now: float, idle: bool) -> list[Arrival]:
        waiting = self._waiting
        if not waiting or (waiting[0].seconds > now and not idle):
            return []
        until = max(now, waiting[0].seconds)
        taken = []
        while waiting and waiting[0].seconds <= until:
            taken.append(waiting.popleft())
        return taken
