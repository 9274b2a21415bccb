"""How long blocks stay in the cache: life, idle time and reuse gaps, per group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.pool.block_pool import BlockPool
from kvhybrid.managers.pool.observer import PoolObserver


@dataclass
class Durations:
    """Count, sum and maximum of a measured time, in the unit of the clock."""

    count: int = 0
    total: float = 0.0
    longest: float = 0.0

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def add(self, values: np.ndarray) -> None:
        if len(values):
            self.count += len(values)
            self.total += float(values.sum())
            self.longest = max(self.longest, float(values.max()))


@dataclass
class GroupResidency:
    """The measured times of one group."""

    life: Durations = field(default_factory=Durations)
    """From handing a block out until it lost its keys because it was reused."""
    idle: Durations = field(default_factory=Durations)
    """How long an evicted block had been free."""
    reuse_gap: Durations = field(default_factory=Durations)
    """How long a block had been free when a hit adopted it."""


class ResidencyMeter(PoolObserver):
    """Measures the blocks of one pool with ``clock``, in the caller's unit: seconds, steps, modelled time."""

    def __init__(self, pool: BlockPool, groups: list[GroupResidency], clock: Callable[[], float]) -> None:
        """The meters of several pools may add to the same ``groups``."""
        self.groups = groups
        self._clock = clock
        self._pool = pool
        self._taken_at = np.zeros(pool.num_blocks)
        self._freed_at = np.zeros(pool.num_blocks)

    def taken(self, ids: IntArray) -> None:
        self._taken_at[ids] = self._clock()

    def freed(self, ids: IntArray) -> None:
        self._freed_at[ids] = self._clock()

    def held(self, ids: IntArray) -> None:
        gaps = self._clock() - self._freed_at[ids]
        for group, chosen in self._by_group(self._pool.group_of[ids]):
            self.groups[group].reuse_gap.add(gaps[chosen])

    def evicted(self, ids: IntArray, groups: IntArray) -> None:
        now = self._clock()
        for group, chosen in self._by_group(groups):
            self.groups[group].life.add(now - self._taken_at[ids[chosen]])
            self.groups[group].idle.add(now - self._freed_at[ids[chosen]])

    @staticmethod
    def _by_group(groups: np.ndarray) -> list[tuple[int, np.ndarray]]:
        return [(group, groups == group) for group in np.unique(groups).tolist()]
