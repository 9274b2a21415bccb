"""Modelled times to first token."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

import numpy as np


class FirstTokenTimes:
    """Collects the modelled seconds from a request's arrival to the end of the step with its first token."""

    def __init__(self) -> None:
        self._seconds = array("d")
        self._total = 0.0

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)
        self._total += seconds

    @property
    def mean(self) -> float:
        return self._total / len(self._seconds) if self._seconds else 0.0

    def figures(self) -> Mapping[str, float]:
        """Mean, median and 99th percentile; all 0 if no request has a first token."""
        median, p99 = np.percentile(self._seconds, (50, 99)).tolist() if self._seconds else (0.0, 0.0)
        return {"ttft_mean": self.mean, "ttft_median": median, "ttft_p99": p99}
