"""A cap on the states of one prefix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.retention.base import RetainedRequest, Retention


@dataclass(frozen=True)
class PathCap(Retention):
    """At most ``states`` on a prefix: the known forks and the last ones.

    SGLang caps the states of a path in the same way (sglang#31230).
    """

    states: int = 3

    def __post_init__(self) -> None:
        if self.states < 1:
            raise ValueError(f"retention.states must be at least 1, found {self.states}")

    def surplus(self, request: RetainedRequest, kept: IntArray) -> IntArray:
        others = np.setdiff1d(kept[:-1], self.known_forks(request, kept))
        return others[: max(len(kept) - self.states, 0)]
