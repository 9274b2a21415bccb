"""The loop of a replay: arrivals, the scheduler's steps, and the modelled clock."""

from __future__ import annotations

from math import inf

from kvhybrid.errors import RunError
from kvhybrid.plugins import path_of
from kvhybrid.replay.arrivals import Arrivals
from kvhybrid.replay.cost import CostModel
from kvhybrid.replay.latency import FirstTokenTimes
from kvhybrid.replay.prefix_keys import PrefixKeys
from kvhybrid.replay.request import ReplayRequest
from kvhybrid.scheduling.base import BaseScheduler, SchedulerOutput
from kvhybrid.scheduling.stall import StallDetector


class _AnyToken(dict[str, int]):
    """The sampled token of every request: no model runs, so any token will do."""

    def __missing__(self, request_id: str) -> int:
        return 0


ANY_TOKEN = _AnyToken()


class ReplayLoop:
    """Drives ``scheduler`` with ``arrivals``. Its counters are cumulative."""

    def __init__(
        self, scheduler: BaseScheduler, arrivals: Arrivals, cost: CostModel, keys: PrefixKeys | None
    ) -> None:
        """``keys`` is None if prefix caching is off."""
        self.scheduler = scheduler
        self.clock = 0.0
        """Modelled seconds."""
        self.first_tokens = FirstTokenTimes()
        self.num_steps = self.num_finished = 0
        self.prompt_tokens = self.output_tokens = self.scheduled_tokens = 0
        self._arrivals = arrivals
        self._cost = cost
        self._keys = keys
        self._stall = StallDetector(scheduler)
        self._arrived: dict[str, float] = {}

    def advance(self, num_steps: int) -> bool:
        """Run up to ``num_steps`` steps. Returns whether more may remain.

        Raises:
            CapacityError: A request does not fit in the whole pool.
            RunError: The scheduler makes no progress, or a plug-in has returned a value that is not valid.
        """
        scheduler = self.scheduler
        for _ in range(num_steps):
            self._let_in(not scheduler.has_unfinished)
            if not scheduler.has_unfinished:
                return False
            output = scheduler.schedule()
            self._settle(output)
            finished = scheduler.update_from_output(output, ANY_TOKEN)
            self.num_finished += len(finished)
            for request_id in finished:
                self._arrivals.finished(request_id, self.clock)
            self._stall.check(output, self._arrivals.has_timed)
        return True

    def _let_in(self, idle: bool) -> None:
        for seconds, request in self._arrivals.take(self.clock, idle):
            if not -inf < seconds < inf:
                raise RunError(f"{path_of(type(self._arrivals))}: {request.request_id!r} arrives at {seconds} s")
            self.clock = max(self.clock, seconds)
            self._arrived[request.request_id] = seconds
            self.prompt_tokens += request.num_prompt_tokens
            self.scheduler.add_request(ReplayRequest(request, self._keys))

    def _settle(self, output: SchedulerOutput) -> None:
        """Count a step and advance the clock to its end."""
        decode = context = 0
        started = []
        for request, start, num_tokens, samples in output.scheduled:
            context += start
            if start >= request.num_prompt_tokens:
                decode += num_tokens == 1
            elif samples and start + num_tokens == request.num_prompt_tokens:
                started.append(request.request_id)
            self.output_tokens += samples
        self.num_steps += 1
        self.scheduled_tokens += output.num_scheduled_tokens
        seconds = self._cost.seconds(output.num_scheduled_tokens - decode, decode, context)
        if not _is_duration(seconds):
            raise RunError(
                f"cost model {path_of(type(self._cost))}: seconds() must return a finite number of more than 0, "
                f"found {seconds!r}"
            )
        self.clock += seconds
        for request_id in started:
            self.first_tokens.add(self.clock - self._arrived.pop(request_id))


def _is_duration(seconds: object) -> bool:
    try:
        return bool(0 < seconds < inf)  # type: ignore[operator]
    except TypeError:
        return False
