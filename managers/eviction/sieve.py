"""SIEVE: a hand moves from the oldest block to the newest and reuses those without a hit since it last passed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.eviction.base import BlockInfo, ReuseOrder
from kvhybrid.managers.eviction.run_queue import gather, looked_at


@mypyc_attr(allow_interpreted_subclasses=True)
class Sieve(ReuseOrder):
    """A block keeps its place while requests hold it, and the hand passes over it."""

    def __init__(self, blocks: BlockInfo) -> None:
        super().__init__(blocks)
        self._release_of = blocks.release_of
        self._ahead: deque[IntArray] = deque()
        """The blocks from the hand to the newest."""
        self._behind: deque[IntArray] = deque()
        """Those that the hand has passed, the oldest first."""
        self._placed = np.zeros(len(blocks.release_of), bool)
        self._visited = np.zeros(len(blocks.release_of), bool)

    def hit(self, ids: IntArray) -> None:
        self._visited[ids] = True

    def append(self, ids: IntArray, release: int) -> None:
        new = ids[~self._placed[ids]]
        if len(new):
            self._ahead.append(new)
            self._placed[new] = True
            self._visited[new] = False

    def remove(self, ids: IntArray, releases: NDArray[np.int64]) -> None:
        """They keep their places."""

    def pop(self, count: int) -> IntArray:
        ids = gather(count, self._take)
        self._placed[ids] = False
        return ids

    def _take(self, count: int) -> IntArray:
        """Move the hand over the next run, until ``count`` blocks are reused."""
        if not self._ahead:
            self._ahead, self._behind = self._behind, self._ahead
        run = self._ahead.popleft()
        goes = self._goes(run)
        end = looked_at(goes, count)
        if end < len(run):
            self._ahead.appendleft(run[end:])
            run, goes = run[:end], goes[:end]
        stays = run[~goes]
        if len(stays):
            self._visited[stays] = False
            self._behind.append(stays)
        return run[goes]

    def _goes(self, run: IntArray) -> NDArray[np.bool_]:
        """A mask of the free blocks without a hit."""
        return np.asarray((self._release_of[run] > 0) & ~self._visited[run])

    def __iter__(self) -> Iterator[int]:
        for run in (*self._ahead, *self._behind):
            yield from run[self._goes(run)].tolist()
        for run in (*self._ahead, *self._behind):
            yield from run[(self._release_of[run] > 0) & self._visited[run]].tolist()
