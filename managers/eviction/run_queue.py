"""The queue that orders of reuse are made of: runs of blocks, and holes where blocks were adopted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray

from kvhybrid.managers.arrays import EMPTY, IntArray

MANY: Final = 4096
"""A queue drops its stale blocks only if it has more entries than this."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Run:
    """Blocks of one release, and the number of the release at which they joined the queue."""

    def __init__(self, ids: IntArray, release: int, joined: int) -> None:
        self.ids = ids
        self.release = release
        self.joined = joined


@mypyc_attr(allow_interpreted_subclasses=True)
class RunQueue:
    """First in, first out. A block waits while its release number is that of its run; adopting it, or moving it to
    another release, leaves a stale entry that is skipped later.

    A block waits in one queue at a time: to move it between queues within one release, take it from the first.
    """

    def __init__(self, release_of: NDArray[np.int64]) -> None:
        """``release_of`` has the release of every block that waits, 0 for all others."""
        self._release_of = release_of
        self.runs: deque[Run] = deque()
        self._entries = 0
        self._limit = MANY

    def append(self, ids: IntArray, release: int, joined: int = 0) -> None:
        """Add ``ids``, freed by ``release``, behind all others."""
        self.runs.append(Run(ids, release, joined))
        self._entries += len(ids)
        if self._entries > self._limit:
            self._drop_stale()

    def waiting(self, run: Run) -> IntArray:
        """The blocks of ``run`` that still wait."""
        ids = run.ids
        return ids[self._release_of[ids] == run.release] if len(ids) else EMPTY

    def take(self, count: int) -> IntArray:
        """Remove up to ``count`` blocks of the first run; none if all of it is stale. There is a run."""
        run = self.runs[0]
        waiting = self.waiting(run)
        self._entries -= len(run.ids)
        if len(waiting) <= count:
            self.runs.popleft()
            return waiting
        run.ids = waiting[count:]
        self._entries += len(run.ids)
        return waiting[:count]

    def __iter__(self) -> Iterator[int]:
        for run in self.runs:
            yield from self.waiting(run).tolist()

    def _drop_stale(self) -> None:
        for run in self.runs:
            run.ids = self.waiting(run)
        left = [run for run in self.runs if len(run.ids)]
        self.runs.clear()  # others hold on to the deque
        self.runs.extend(left)
        self._entries = sum(len(run.ids) for run in self.runs)
        self._limit = max(MANY, 2 * self._entries)


def gather(count: int, take: Callable[[int], IntArray]) -> IntArray:
    """``count`` blocks, from as many calls of ``take`` as that needs. It gets the number of blocks that are still
    missing, and returns at most as many."""
    parts: list[IntArray] = []
    while count:
        found = take(count)
        parts.append(found)
        count -= len(found)
    return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else EMPTY


def looked_at(goes: NDArray[np.bool_], count: int) -> int:
    """How many blocks of a run to look at until ``count`` of them go; all of them if no more do."""
    places = np.flatnonzero(goes)
    return int(places[count - 1]) + 1 if len(places) > count else len(goes)
