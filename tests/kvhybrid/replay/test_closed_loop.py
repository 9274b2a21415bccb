"""Closed-loop sessions: the next request waits for the previous answer and the think time."""

from __future__ import annotations

import numpy as np
import pytest

from kvhybrid.replay.closed_loop import ClosedLoop
from kvhybrid.replay.trace import TraceRequest


def request(name: str, session: str | None, think: float = 0.0) -> TraceRequest:
    return TraceRequest(name, 0.0, 16, 1, np.zeros(1, np.int64), session, think)


REQUESTS = [request("a1", "a"), request("b1", "b"), request("a2", "a", 5.0), request("c", None)]


def test_a_session_sends_its_next_request_after_answer_and_think_time() -> None:
    arrivals = ClosedLoop(concurrency=2).arrivals(REQUESTS)
    assert [(a.seconds, a.request.request_id) for a in arrivals.take(0.0, True)] == [(0.0, "a1"), (0.0, "b1")]
    arrivals.finished("a1", 3.0)
    assert arrivals.take(7.9, False) == []
    assert [(a.seconds, a.request.request_id) for a in arrivals.take(9.0, False)] == [(8.0, "a2")]


def test_a_new_session_starts_when_one_has_ended() -> None:
    arrivals = ClosedLoop(concurrency=2).arrivals(REQUESTS)
    arrivals.take(0.0, True)
    arrivals.finished("b1", 2.0)
    assert [(a.seconds, a.request.request_id) for a in arrivals.take(2.0, False)] == [(2.0, "c")]
    arrivals.finished("c", 3.0)
    arrivals.finished("a1", 3.0)
    assert [a.request.request_id for a in arrivals.take(3.0, True)] == ["a2"]
    arrivals.finished("a2", 9.0)
    assert arrivals.take(9.0, True) == []


def test_think_times_can_be_scaled_or_replaced() -> None:
    for process, seconds in ((ClosedLoop(think_scale=0.5), 2.5), (ClosedLoop(think_seconds=1.0), 1.0)):
        arrivals = process.arrivals(REQUESTS)
        arrivals.take(0.0, True)
        arrivals.finished("a1", 0.0)
        assert [a.seconds for a in arrivals.take(0.0, True)] == [seconds]


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"executor.concurrency must be at least 1, found 0"):
        ClosedLoop(concurrency=0)
