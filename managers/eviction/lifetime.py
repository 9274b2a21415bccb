"""Least recently used, but what a request drops while it runs is as recent as its end."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.eviction.base import BlockInfo, ReuseOrder
from kvhybrid.managers.eviction.run_queue import RunQueue, gather


@mypyc_attr(allow_interpreted_subclasses=True)
class Lifetime(ReuseOrder):
    """A resume needs the blocks of all groups, so they should age together.

    LRU ages a request's states and the window blocks that it has passed from the moment they are dropped, while
    its keys and values stay held. Here they are kept aside until the request ends, and then join the queue behind
    the first blocks that it releases. Before that they are reused only if nothing else is left, those of the
    request that was first to drop any first.
    """

    def __init__(self, blocks: BlockInfo) -> None:
        super().__init__(blocks)
        self._queue = RunQueue(blocks.release_of)
        self._running: dict[int, RunQueue] = {}
        """What running requests have dropped, by the request's `id`."""

    def append(self, ids: IntArray, release: int) -> None:
        request, queue = self.blocks.request, self._queue
        if request is None:
            queue.append(ids, release)
        elif self.blocks.is_end:
            queue.append(ids, release)
            dropped = self._running.pop(id(request), None)
            if dropped is not None:
                for run in dropped.runs:
                    queue.append(run.ids, run.release)
        else:
            mine = self._running.get(id(request))
            if mine is None:
                mine = self._running[id(request)] = RunQueue(self.blocks.release_of)
            mine.append(ids, release)

    def remove(self, ids: IntArray, releases: NDArray[np.int64]) -> None:
        """Their entries are stale from now on."""

    def pop(self, count: int) -> IntArray:
        return gather(count, self._take)

    def _take(self, count: int) -> IntArray:
        return self._first().take(count)

    def _first(self) -> RunQueue:
        if self._queue.runs:
            return self._queue
        request, queue = next(iter(self._running.items()))
        while not queue.runs:
            del self._running[request]
            request, queue = next(iter(self._running.items()))
        return queue

    def __iter__(self) -> Iterator[int]:
        yield from self._queue
        for dropped in self._running.values():
            yield from dropped
