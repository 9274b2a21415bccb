"""The step statistics that a run's plots are drawn from, in bounded memory."""

from __future__ import annotations

from kvhybrid.cache.stats import StepStats

MAX_POINTS = 4096


class History:
    """Keeps every step at first, then every second, every fourth, … as their number grows."""

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        self.points: list[StepStats] = []
        self.num_steps = 0
        self._max_points = max_points
        self._stride = 1
        self._last: StepStats | None = None

    @property
    def preemptions(self) -> int:
        return self._last.preemptions if self._last else 0

    def add(self, stats: StepStats) -> None:
        self._last = stats
        if self.num_steps % self._stride == 0:
            self.points.append(stats)
        self.num_steps += 1
        if len(self.points) > self._max_points:
            self.points = self.points[::2]
            self._stride *= 2
