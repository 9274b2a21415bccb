"""Detects a scheduler that no longer makes progress."""

from __future__ import annotations

from kvhybrid.errors import RunError
from kvhybrid.plugins import path_of
from kvhybrid.scheduling.base import BaseScheduler, SchedulerOutput

MOST_EMPTY_STEPS = 100
"""Consecutive steps without tokens that a scheduler may return, e.g. to wait for a larger batch."""


class StalledError(RunError):
    """A scheduler has unfinished requests and schedules none of them."""


class StallDetector:
    """Counts the consecutive steps of one scheduler that compute nothing."""

    def __init__(self, scheduler: BaseScheduler) -> None:
        self._scheduler = scheduler
        self._empty_steps = 0

    def check(self, output: SchedulerOutput, more_may_arrive: bool = False) -> None:
        """Call it after every step. ``more_may_arrive`` is whether requests can still arrive as time passes.

        Raises:
            StalledError: There are unfinished requests, and the last `MOST_EMPTY_STEPS` steps computed nothing.
        """
        scheduled = output.scheduled
        computes = scheduled and (scheduled[0].num_tokens or any(item.num_tokens for item in scheduled))
        if computes or more_may_arrive:
            self._empty_steps = 0
            return
        self._empty_steps += 1
        scheduler = self._scheduler
        if self._empty_steps >= MOST_EMPTY_STEPS and scheduler.has_unfinished:
            raise StalledError(
                f"scheduler {path_of(type(scheduler))} makes no progress: it has scheduled no tokens in "
                f"{MOST_EMPTY_STEPS} steps, with {len(scheduler.running)} running and {len(scheduler.waiting)} "
                f"waiting requests"
            )
