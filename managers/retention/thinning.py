"""Thinning: few states, spread over the prefix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.retention.base import RetainedRequest, Retention


@dataclass(frozen=True)
class Thinning(Retention):
    """At most ``states`` on a prefix, spread so that a prompt that parts anywhere finds one not far before.

    The state whose removal leaves the smallest gap goes first; the last one and known forks stay (sglang#38000).
    """

    states: int = 8

    def __post_init__(self) -> None:
        if self.states < 2:
            raise ValueError(f"retention.states must be at least 2, found {self.states}")

    def surplus(self, request: RetainedRequest, kept: IntArray) -> IntArray:
        forks, left = self.known_forks(request, kept), kept
        while len(left) > self.states:
            gaps = left[1:] - np.concatenate(([0], left[:-2]))  # what each one but the last would leave behind
            gaps[np.isin(left[:-1], forks)] = np.iinfo(np.int32).max
            left = np.delete(left, int(np.argmin(gaps)))
        return np.setdiff1d(kept, left)
