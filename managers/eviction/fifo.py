"""First in, first out: blocks are reused in the order in which they first became free; hits do not count."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.eviction.base import BlockInfo, ReuseOrder
from kvhybrid.managers.eviction.run_queue import RunQueue, gather, looked_at


@mypyc_attr(allow_interpreted_subclasses=True)
class FIFO(ReuseOrder):
    """A block keeps its place while requests hold it. One whose turn comes while it is held is reused before all
    others as soon as it is free again."""

    def __init__(self, blocks: BlockInfo) -> None:
        super().__init__(blocks)
        self._release_of = blocks.release_of
        self._runs: deque[IntArray] = deque()
        self._overdue = RunQueue(blocks.release_of)
        self._placed = np.zeros(len(blocks.release_of), bool)
        """Whether a block is in ``_runs``, be it free or held."""
        self._missed = np.zeros(len(blocks.release_of), bool)
        """Whether a block was held when its turn came."""

    def append(self, ids: IntArray, release: int) -> None:
        missed = self._missed[ids]
        if missed.any():
            self._overdue.append(ids[missed], release)
        new = ids[~(missed | self._placed[ids])]
        if len(new):
            self._runs.append(new)
            self._placed[new] = True

    def remove(self, ids: IntArray, releases: NDArray[np.int64]) -> None:
        """They keep their places."""

    def pop(self, count: int) -> IntArray:
        ids = gather(count, self._take)
        self._missed[ids] = False
        return ids

    def _take(self, count: int) -> IntArray:
        """Up to ``count`` overdue blocks, or free blocks of the first run. The held ones before these have missed
        their turn."""
        if self._overdue.runs:
            return self._overdue.take(count)
        run = self._runs.popleft()
        free = self._release_of[run] > 0
        end = looked_at(free, count)
        if end < len(run):
            self._runs.appendleft(run[end:])
            run, free = run[:end], free[:end]
        self._placed[run] = False
        self._missed[run[~free]] = True
        return run[free]

    def __iter__(self) -> Iterator[int]:
        yield from self._overdue
        for run in self._runs:
            yield from run[self._release_of[run] > 0].tolist()
