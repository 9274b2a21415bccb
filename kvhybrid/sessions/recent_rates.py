"""Hit rates over a sliding window, in addition to the cumulative ones of the cache."""

from __future__ import annotations

from collections import deque

from kvhybrid.cache.stats import CacheStats

WINDOW = 32
"""Samples in which tokens were asked for that a rate covers."""


class RecentRates:
    """The hit rates of every group over the last `WINDOW` samples in which tokens were asked for."""

    def __init__(self, window: int = WINDOW) -> None:
        self._samples: deque[list[tuple[int, int, int]]] = deque(maxlen=window + 1)
        """Per sample and group: tokens asked, hit and hit alone, from the start."""

    def add(self, cache: CacheStats) -> dict[str, float]:
        """Take a sample. Returns ``group/<name>/recent_hit_rate`` and ``recent_own_hit_rate``."""
        counts = [(group.tokens_asked, group.tokens_hit, group.tokens_own_hit) for group in cache.groups]
        if not self._samples:
            self._samples.append([(0, 0, 0)] * len(counts))
        if counts != self._samples[-1]:
            self._samples.append(counts)
        rates: dict[str, float] = {}
        for group, first, last in zip(cache.groups, self._samples[0], self._samples[-1], strict=True):
            asked = last[0] - first[0]
            rates[f"group/{group.name}/recent_hit_rate"] = (last[1] - first[1]) / asked if asked else 0.0
            rates[f"group/{group.name}/recent_own_hit_rate"] = (last[2] - first[2]) / asked if asked else 0.0
        return rates
