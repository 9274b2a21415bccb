"""Closed-loop sessions: a user sends the next request some time after the answer to the previous one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from kvhybrid.replay.arrivals import Arrival, ArrivalProcess, Arrivals
from kvhybrid.replay.trace import TraceRequest
from kvhybrid.settings.values import at_least


@dataclass(frozen=True, kw_only=True)
class ClosedLoop(ArrivalProcess):
    """``concurrency`` sessions at once; the next one starts when one has ended. A session's next request arrives
    when its previous one has ended and the user has thought: for ``think_seconds`` or, if that is None, for the
    time in the trace times ``think_scale``. Arrival times of the trace are ignored."""

    concurrency: int = 8
    think_seconds: float | None = None
    think_scale: float = 1.0

    def __post_init__(self) -> None:
        at_least("executor.concurrency", self.concurrency, 1)
        at_least("executor.think_scale", self.think_scale, 0)
        if self.think_seconds is not None:
            at_least("executor.think_seconds", self.think_seconds, 0)

    def arrivals(self, requests: Sequence[TraceRequest]) -> Arrivals:
        return _Sessions(self, requests)


class _Sessions(Arrivals):
    def __init__(self, process: ClosedLoop, requests: Sequence[TraceRequest]) -> None:
        self._process = process
        by_name: dict[str, deque[TraceRequest]] = {}
        for index, request in enumerate(requests):
            by_name.setdefault(request.session or f"\0{index}", deque()).append(request)
        self._unstarted = deque(by_name.values())
        self._running: dict[str, deque[TraceRequest]] = {}
        """The unsent requests of a session, by the id of its request that was sent last."""
        self._due: list[tuple[float, int, deque[TraceRequest]]] = []
        """A heap of sessions by the time of their next request."""
        self._entries = 0
        for _ in range(process.concurrency):
            self._start(0.0)

    def _start(self, now: float) -> None:
        if self._unstarted:
            self._await(now, self._unstarted.popleft())

    def _await(self, seconds: float, session: deque[TraceRequest]) -> None:
        self._entries += 1
        heappush(self._due, (seconds, self._entries, session))

    def take(self, now: float, idle: bool) -> list[Arrival]:
        due = self._due
        if not due or (due[0][0] > now and not idle):
            return []
        until = max(now, due[0][0])
        taken = []
        while due and due[0][0] <= until:
            seconds, _, session = heappop(due)
            request = session.popleft()
            self._running[request.request_id] = session
            taken.append(Arrival(seconds, request))
        return taken

    @property
    def has_timed(self) -> bool:
        return bool(self._due)

    def finished(self, request_id: str, now: float) -> None:
        session = self._running.pop(request_id)
        if not session:
            self._start(now)
            return
        process = self._process
        think = process.think_seconds
        if think is None:
            think = session[0].think_seconds * process.think_scale
        self._await(now + think, session)
