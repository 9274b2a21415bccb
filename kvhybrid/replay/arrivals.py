"""Arrival processes: when the requests of a trace are sent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from kvhybrid.replay.trace import TraceRequest
from kvhybrid.settings.values import at_least


class Arrival(NamedTuple):
    """A request and its arrival time in modelled seconds."""

    seconds: float
    request: TraceRequest


class Arrivals(ABC):
    """The requests of one replay, released as the modelled clock advances."""

    @abstractmethod
    def take(self, now: float, idle: bool) -> list[Arrival]:
        """The requests that have arrived by ``now`` and were not taken before.

        If the scheduler is ``idle``, returns the next requests even if they arrive later, and the clock jumps to
        their arrival; an empty list then means the end.
        """

    def finished(self, request_id: str, now: float) -> None:
        """A request has ended at ``now``. Only a closed loop needs to know."""
        return

    @property
    def has_timed(self) -> bool:
        """Whether requests are left that arrive as time passes, even if the scheduler is not idle."""
        return False


class ArrivalProcess(ABC):
    """Decides when the requests of a trace arrive.

    Subclasses are dataclasses whose fields are the keys of ``conf/executor/<name>.yaml``.
    """

    one_at_a_time: ClassVar[bool] = False
    """Whether a request arrives only when no other is left, so that requests are looked up in the order of the
    trace and never run together."""

    @abstractmethod
    def arrivals(self, requests: Sequence[TraceRequest]) -> Arrivals:
        """Start the trace from the beginning."""


@dataclass(frozen=True, kw_only=True)
class OneByOne(ArrivalProcess):
    """Each request starts when the previous one has ended; the times of the trace are ignored."""

    one_at_a_time: ClassVar[bool] = True

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
    """Requests arrive at the times of the trace, regardless of the backlog. ``time_scale`` multiplies these times:
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

    @property
    def has_timed(self) -> bool:
        return bool(self._waiting)
