"""S3-FIFO: new blocks pass a small queue, and only those that were hit there enter the main one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray

from kvhybrid.managers.arrays import IntArray, int_array
from kvhybrid.managers.eviction.base import BlockInfo, ReuseOrder
from kvhybrid.managers.eviction.ghosts import Ghosts
from kvhybrid.managers.eviction.run_queue import gather, looked_at

SMALL, MAIN = 0, 1
MOST: Final = 3
"""More hits than this count as this many."""


@mypyc_attr(allow_interpreted_subclasses=True)
class S3FIFO(ReuseOrder):
    """A block keeps its place while requests hold it.

    While more than ``small`` of the pool's blocks are in the small queue, its first block is looked at: a block
    that is held or was hit goes to the end of the main queue, any other one is reused. Otherwise the first block
    of the main queue is: one that is held or has hits left goes to its end with one hit less, any other one is
    reused. A block whose prefix was reused recently enters the main queue at once. If the main queue has nothing
    but held blocks, the small one is looked at.
    """

    def __init__(self, blocks: BlockInfo, small: float = 0.1) -> None:
        super().__init__(blocks)
        if not 0 <= small <= 1:
            raise ValueError(f"eviction.small must lie in [0, 1], found {small}")
        num_blocks = len(blocks.release_of)
        self.small = int(small * num_blocks)
        self._release_of = blocks.release_of
        self._queues: tuple[deque[IntArray], deque[IntArray]] = (deque(), deque())
        self._sizes = [0, 0]
        self._kept = 0
        """Blocks of the main queue that were looked at and kept since a block was last reused."""
        self._placed = np.zeros(num_blocks, bool)
        self._hits = np.zeros(num_blocks, np.int8)
        self._ghosts = Ghosts(blocks, num_blocks - self.small)

    def hit(self, ids: IntArray) -> None:
        self._hits[ids] = np.minimum(self._hits[ids] + 1, MOST)

    def append(self, ids: IntArray, release: int) -> None:
        new = ids[~self._placed[ids]]
        if len(new):
            back = self._ghosts.take(new)
            self._put(SMALL, new[~back])
            self._put(MAIN, new[back])
            self._placed[new] = True
            self._hits[new] = 0

    def _put(self, queue: int, ids: IntArray) -> None:
        if len(ids):
            self._queues[queue].append(ids)
            self._sizes[queue] += len(ids)

    def remove(self, ids: IntArray, releases: NDArray[np.int64]) -> None:
        """They keep their places."""

    def pop(self, count: int) -> IntArray:
        ids = gather(count, self._take)
        self._placed[ids] = False
        return ids

    def _take(self, count: int) -> IntArray:
        """Up to ``count`` blocks to reuse, of the queue whose turn it is."""
        spare = self._sizes[SMALL] - self.small
        if spare > 0:
            return self._look(SMALL, spare, count)
        queue = MAIN if self._looks_at_main(self._sizes, self._kept) else SMALL
        return self._look(queue, self._sizes[queue], count)

    @staticmethod
    def _looks_at_main(sizes: Sequence[int], kept: int) -> bool:
        """Whether the main queue may have a block to reuse: one round takes one hit of each of its free blocks."""
        return sizes[MAIN] > 0 and (not sizes[SMALL] or kept < (MOST + 1) * sizes[MAIN])

    def _look(self, queue: int, most: int, count: int) -> IntArray:
        """Look at up to ``most`` blocks of the first run, until ``count`` are reused."""
        run = self._queues[queue].popleft()
        looked = run[:most]
        goes = (self._release_of[looked] > 0) & (self._hits[looked] == 0)
        end = looked_at(goes, count)
        looked, goes = looked[:end], goes[:end]
        if len(looked) < len(run):
            self._queues[queue].appendleft(run[len(looked) :])
        self._sizes[queue] -= len(looked)
        stays = looked[~goes]
        self._hits[stays] = np.maximum(self._hits[stays] - 1, 0) if queue == MAIN else 0
        self._put(MAIN, stays)
        self._kept = self._kept + len(stays) if queue == MAIN and not goes.any() else 0
        if queue == SMALL:
            self._ghosts.add(looked[goes])
        gone: IntArray = looked[goes]
        return gone

    def __iter__(self) -> Iterator[int]:
        """Looks at copies of the queues as `pop` does."""
        small, main = ([b for run in queue for b in run.tolist()] for queue in self._queues)
        queues, hits = (deque(small), deque(main)), self._hits.copy()
        left, kept = int((self._release_of[int_array([*small, *main])] > 0).sum()), self._kept
        while left:
            sizes = [len(queue) for queue in queues]
            at_main = sizes[SMALL] <= self.small and self._looks_at_main(sizes, kept)
            block = queues[MAIN if at_main else SMALL].popleft()
            if self._release_of[block] and not hits[block]:
                left, kept = left - 1, 0
                yield block
                continue
            hits[block] = max(hits[block] - 1, 0) if at_main else 0
            kept = kept + 1 if at_main else 0
            queues[MAIN].append(block)
