"""ARC: the space for blocks that were hit and for those that were not adapts to what returns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.eviction.base import BlockInfo, ReuseOrder
from kvhybrid.managers.eviction.ghosts import Ghosts
from kvhybrid.managers.eviction.run_queue import RunQueue, gather

NEW, HIT = 0, 1
NEITHER: Final = -1


@mypyc_attr(allow_interpreted_subclasses=True)
class ARC(ReuseOrder):
    """Two queues by recency: free blocks without a hit, and those with one.

    While more blocks than ``target`` are in the first queue, it is reused from, and otherwise the second. A block
    whose prefix was reused from the first queue raises the target by one when it returns, one from the second
    lowers it, and both enter the second queue. Held blocks count for neither queue.
    """

    def __init__(self, blocks: BlockInfo) -> None:
        super().__init__(blocks)
        num_blocks = len(blocks.release_of)
        self.target = 0
        self._queues = (RunQueue(blocks.release_of), RunQueue(blocks.release_of))
        self._sizes = [0, 0]
        self._ghosts = (Ghosts(blocks, num_blocks), Ghosts(blocks, num_blocks))
        self._queue_of = np.full(num_blocks, NEITHER, np.int8)
        """The queue that a block is or was in since it was computed."""

    def hit(self, ids: IntArray) -> None:
        free = ids[self.blocks.release_of[ids] > 0]
        in_hit = int((self._queue_of[free] == HIT).sum())
        self._sizes[HIT] -= in_hit
        self._sizes[NEW] -= len(free) - in_hit
        self._queue_of[ids] = HIT

    def append(self, ids: IntArray, release: int) -> None:
        new = ids[self._queue_of[ids] == NEITHER]
        if len(new):
            from_new, from_hit = (ghosts.take(new) for ghosts in self._ghosts)
            change = int(from_new.sum()) - int(from_hit.sum())
            self.target = min(max(self.target + change, 0), len(self._queue_of))
            self._queue_of[new] = np.where(from_new | from_hit, HIT, NEW)
        hit = self._queue_of[ids] == HIT
        for queue, chosen in ((NEW, ids[~hit]), (HIT, ids[hit])):
            if len(chosen):
                self._queues[queue].append(chosen, release)
                self._sizes[queue] += len(chosen)

    def remove(self, ids: IntArray, releases: NDArray[np.int64]) -> None:
        """`hit` was told before."""

    def pop(self, count: int) -> IntArray:
        return gather(count, self._take)

    def _take(self, count: int) -> IntArray:
        """Up to ``count`` blocks of the first run of the queue that has more than its share."""
        spare = self._sizes[NEW] - self.target
        queue, most = (NEW, spare) if spare > 0 else (HIT, count)
        if not self._sizes[queue]:
            queue, most = NEW, count
        found = self._queues[queue].take(min(most, count))
        self._sizes[queue] -= len(found)
        self._ghosts[queue].add(found)
        self._queue_of[found] = NEITHER
        return found

    def __iter__(self) -> Iterator[int]:
        new, hit = list(self._queues[NEW]), list(self._queues[HIT])
        spare = max(len(new) - self.target, 0)
        yield from new[:spare]
        yield from hit
        yield from new[spare:]
