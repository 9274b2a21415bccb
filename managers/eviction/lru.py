"""Least recently used: blocks are reused in the order in which they became free."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from kvhybrid.managers.arrays import EMPTY, IntArray
from kvhybrid.managers.eviction.base import ReuseOrder

MANY = 4096
"""Entries of runs below which it is not worth looking for stale ones."""


class LRU(ReuseOrder):
    """A queue of runs: the blocks that one request gave back together stay together.

    Each run has a mark, and every waiting block carries the mark of its run. A block that is adopted loses its
    mark and is skipped when its run comes up, so taking it out of the middle costs nothing. Runs that lost no
    block are handed out in slices, without a look at their marks.
    """

    def __init__(self, num_blocks: int) -> None:
        self._runs: deque[tuple[int, IntArray]] = deque()
        self._mark_of = np.zeros(num_blocks, np.int64)
        self._last_mark = 0
        self._holed: set[int] = set()
        """Marks of the runs that have lost blocks."""
        self._entries = self._waiting_blocks = 0

    def append(self, ids: IntArray) -> None:
        self._last_mark += 1
        self._mark_of[ids] = self._last_mark
        self._runs.append((self._last_mark, ids))
        self._entries += len(ids)
        self._waiting_blocks += len(ids)
        if self._entries > MANY and self._entries > 4 * self._waiting_blocks:
            self._drop_stale()

    def remove(self, ids: IntArray) -> None:
        self._holed.update(self._mark_of[ids].tolist())
        self._mark_of[ids] = 0
        self._waiting_blocks -= len(ids)

    def pop(self, count: int) -> IntArray:
        self._waiting_blocks -= count
        taken: list[IntArray] = []
        while count:
            mark, ids = self._runs.popleft()
            self._entries -= len(ids)
            waiting = self._waiting(mark, ids)
            if len(waiting) > count:
                self._runs.appendleft((mark, waiting[count:]))
                self._entries += len(waiting) - count
                waiting = waiting[:count]
            else:
                self._holed.discard(mark)
            taken.append(waiting)
            count -= len(waiting)
        return taken[0] if len(taken) == 1 else np.concatenate(taken) if taken else EMPTY

    def __iter__(self) -> Iterator[int]:
        for mark, ids in self._runs:
            yield from self._waiting(mark, ids).tolist()

    def _waiting(self, mark: int, ids: IntArray) -> IntArray:
        return ids[self._mark_of[ids] == mark] if mark in self._holed else ids

    def _drop_stale(self) -> None:
        live = ((mark, self._waiting(mark, ids)) for mark, ids in self._runs)
        self._runs = deque((mark, ids) for mark, ids in live if len(ids))
        self._entries = sum(len(ids) for _, ids in self._runs)
        self._holed.clear()
