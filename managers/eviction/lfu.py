"""Least frequently used: blocks with the fewest hits are reused first, among equals the least recently used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.eviction.base import BlockInfo, ReuseOrder
from kvhybrid.managers.eviction.run_queue import RunQueue, gather

MOST: Final = 63
"""More hits than this count as this many."""


@mypyc_attr(allow_interpreted_subclasses=True)
class LFU(ReuseOrder):
    """A queue per number of hits. A block's hits are forgotten when it is reused."""

    def __init__(self, blocks: BlockInfo) -> None:
        super().__init__(blocks)
        self._queues = [RunQueue(blocks.release_of) for _ in range(MOST + 1)]
        self._hits = np.zeros(len(blocks.release_of), np.int8)

    def hit(self, ids: IntArray) -> None:
        self._hits[ids] = np.minimum(self._hits[ids] + 1, MOST)

    def append(self, ids: IntArray, release: int) -> None:
        hits = self._hits[ids]
        for found in np.flatnonzero(np.bincount(hits)).tolist():
            self._queues[found].append(ids[hits == found], release)

    def remove(self, ids: IntArray, releases: NDArray[np.int64]) -> None:
        """Their entries are stale from now on."""

    def pop(self, count: int) -> IntArray:
        ids = gather(count, self._take)
        self._hits[ids] = 0
        return ids

    def _take(self, count: int) -> IntArray:
        """Up to ``count`` blocks of the first run of those with the fewest hits."""
        return next(queue for queue in self._queues if queue.runs).take(count)

    def __iter__(self) -> Iterator[int]:
        for queue in self._queues:
            yield from queue
