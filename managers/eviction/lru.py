"""Least recently used: blocks are reused in the order in which they became free."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray

from kvhybrid.managers.arrays import EMPTY, IntArray
from kvhybrid.managers.eviction.base import BlockInfo, ReuseOrder

MANY: Final = 4096
"""Stale entries of runs are dropped only if there are more entries than this."""


@mypyc_attr(allow_interpreted_subclasses=True)
class LRU(ReuseOrder):
    """A queue of runs, each with the blocks of one release.

    An adopted block loses its release number and is skipped when its run is popped, so removing it from the middle
    costs nothing. Runs that have lost no blocks are popped as slices, without checks.
    """

    def __init__(self, blocks: BlockInfo) -> None:
        super().__init__(blocks)
        self.release_of = blocks.release_of
        self._runs: deque[tuple[int, IntArray]] = deque()
        self._holed: set[int] = set()
        """The releases whose runs have lost blocks."""
        self._entries = self._waiting_blocks = 0

    def append(self, ids: IntArray, release: int) -> None:
        self._runs.append((release, ids))
        self._entries += len(ids)
        self._waiting_blocks += len(ids)
        if self._entries > MANY and self._entries > 4 * self._waiting_blocks:
            self._drop_stale()

    def remove(self, ids: IntArray, releases: NDArray[np.int64]) -> None:
        self._holed.update(releases.tolist())
        self._waiting_blocks -= len(ids)

    def pop(self, count: int) -> IntArray:
        self._waiting_blocks -= count
        taken: list[IntArray] = []
        while count:
            release, ids = self._runs.popleft()
            self._entries -= len(ids)
            waiting = self._waiting(release, ids)
            if len(waiting) > count:
                self._runs.appendleft((release, waiting[count:]))
                self._entries += len(waiting) - count
                waiting = waiting[:count]
            else:
                self._holed.discard(release)
            taken.append(waiting)
            count -= len(waiting)
        return taken[0] if len(taken) == 1 else np.concatenate(taken) if taken else EMPTY

    def __iter__(self) -> Iterator[int]:
        for release, ids in self._runs:
            yield from self._waiting(release, ids).tolist()

    def _waiting(self, release: int, ids: IntArray) -> IntArray:
        return ids[self.release_of[ids] == release] if release in self._holed else ids

    def _drop_stale(self) -> None:
        live = ((release, self._waiting(release, ids)) for release, ids in self._runs)
        self._runs = deque((release, ids) for release, ids in live if len(ids))
        self._entries = sum(len(ids) for _, ids in self._runs)
        self._holed.clear()
