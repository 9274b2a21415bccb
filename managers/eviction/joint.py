"""Joint worth: a block is kept for what a resume would save, shared among all blocks that the resume needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from math import log2
from typing import Final

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.eviction.base import BlockInfo, ReuseOrder
from kvhybrid.managers.eviction.run_queue import Run, RunQueue, gather
from kvhybrid.managers.retention.base import RetainedRequest

TURNS: Final = 15
"""A prefix that was continued more often counts as one that was continued this often."""
LEVELS: Final = 2
"""Levels of worth per doubling."""
SMALLEST: Final = 1e-3
"""The smallest share that counts."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Dropped:
    """What a running request has dropped and keeps aside until it ends."""

    def __init__(self, release_of: NDArray[np.int64]) -> None:
        self.states = RunQueue(release_of)
        self.forks = RunQueue(release_of)
        """Window blocks that some bundle had, so that this request has resumed from them."""
        self.recent = RunQueue(release_of)
        """The window blocks that it has passed last."""
        self.sorted_at = -(1 << 30)
        """Up to this unit, passed blocks were sorted out."""

    @property
    def queues(self) -> tuple[RunQueue, ...]:
        return self.states, self.forks, self.recent


@mypyc_attr(allow_interpreted_subclasses=True)
class Joint(ReuseOrder):
    """What a request leaves behind is one bundle, and all of it ages from the request's end.

    A bundle is worth ``turn ** persistence * share``. A request that resumes from the second half of another's
    prefix continues it and has the next turn; any other request has turn 1. The share is that of the blocks that
    keep the whole prefix among all blocks that a resume at its end needs: what the resume saves, per block. The
    bundle whose age divided by its worth is greatest is reused first.

    Before all bundles go the blocks that no likely resume needs: window blocks that were passed more than
    ``slack`` tokens (for some of them twice that) before the request's end, and those at a point from which the
    conversation has moved on. What else a running request has dropped is kept aside, and is reused only if nothing
    else is left.
    """

    def __init__(self, blocks: BlockInfo, persistence: float = 3.0, slack: int = 512) -> None:
        super().__init__(blocks)
        if persistence < 0 or slack < 0:
            found = f"persistence = {persistence}, slack = {slack}"
            raise ValueError(f"eviction: persistence and slack must be at least 0, found {found}")
        self.persistence = persistence
        self.slack = slack
        self._release_of = blocks.release_of
        self._unlikely = RunQueue(blocks.release_of)
        self._levels: dict[int, RunQueue] = {}
        """The bundles by the logarithm of their worth."""
        self._runs: dict[int, deque[Run]] = {}
        """The runs of ``_levels``."""
        self._running: dict[int, Dropped] = {}
        """By the request's `id`."""
        self._bundle_of: RetainedRequest | None = None
        """The request whose bundle is being filled."""
        self._level = self._turn = self._units = 0
        """Of that bundle."""
        self._turn_of = np.zeros(len(blocks.release_of), np.int8)
        """For every block of a bundle the bundle's turn, 0 for others."""
        self._units_of = np.zeros(len(blocks.release_of), np.int32)
        """For every block of a bundle, the length of the bundle's prefix in units."""
        self._now = 0
        """The last release."""

    # ---- what is released

    def append(self, ids: IntArray, release: int) -> None:
        info, request = self.blocks, self.blocks.request
        self._now = release
        if request is None:
            self._unlikely.append(ids, release)
        elif info.is_end:
            self._end(request, ids, release)
        else:
            self._bundle_of = None
            self._drop(request, ids, release)

    def _end(self, request: RetainedRequest, ids: IntArray, release: int) -> None:
        spec = self.blocks.spec_of(ids)
        if request is self._bundle_of and not (spec is not None and spec.prefix):
            self._add(ids, release)
            return
        self._bundle_of = request
        self._begin_bundle(ids)
        self._add(ids, release)
        dropped = self._running.pop(id(request), None)
        if dropped is not None:
            for run in dropped.forks.runs if self._turn > 1 else ():
                self._unlikely.append(run.ids, run.release)
            for queue in (dropped.states, dropped.recent) if self._turn > 1 else dropped.queues:
                for run in queue.runs:
                    self._add(run.ids, run.release)

    def _begin_bundle(self, ids: IntArray) -> None:
        """``ids``, tail first, are the first of a bundle: find out what it continues and what it is worth."""
        info = self.blocks
        self._units, self._turn = int(info.units(ids[:1])[0]), 1
        earlier = np.flatnonzero(self._turn_of[ids])
        if len(earlier):
            last = ids[earlier[:1]]
            if 2 * int(info.units(last)[0]) >= int(self._units_of[last[0]]):
                self._turn = min(int(self._turn_of[last[0]]) + 1, TURNS)
        whole, others = info.blocks_to_resume(self._units)
        share = max(whole / (whole + others), SMALLEST) if whole else 1.0
        self._level = round(LEVELS * log2(self._turn**self.persistence * share))

    def _add(self, ids: IntArray, release: int) -> None:
        """Add ``ids`` to the bundle."""
        queue = self._levels.get(self._level)
        if queue is None:
            queue = self._levels[self._level] = RunQueue(self._release_of)
            self._runs[self._level] = queue.runs
        queue.append(ids, release, self._now)
        self._turn_of[ids] = self._turn
        self._units_of[ids] = self._units

    def _drop(self, request: RetainedRequest, ids: IntArray, release: int) -> None:
        dropped = self._running.get(id(request))
        if dropped is None:
            dropped = self._running[id(request)] = Dropped(self._release_of)
        spec = self.blocks.spec_of(ids)
        if spec is None or spec.state:
            dropped.states.append(ids, release)
            return
        fork = self._turn_of[ids] > 0
        if fork.any():
            dropped.forks.append(ids[fork], release)
            ids = ids[~fork]
        if len(ids):
            self._pass(dropped, ids, release)

    def _pass(self, dropped: Dropped, ids: IntArray, release: int) -> None:
        """The request has passed ``ids``, the highest first: those more than ``slack`` below them are unlikely.

        They are sorted out once in ``slack`` tokens, so that a block is looked at twice at most.
        """
        dropped.recent.append(ids, release)
        slack = self.slack // self.blocks.unit
        limit = int(self.blocks.units(ids[:1])[0]) - slack
        if limit < dropped.sorted_at + slack:
            return
        dropped.sorted_at = limit
        runs = list(dropped.recent.runs)
        dropped.recent = RunQueue(self._release_of)
        for run in runs:
            waiting = self._unlikely.waiting(run)
            near = self.blocks.units(waiting) > limit
            if near.any():
                dropped.recent.append(waiting[near], run.release)
            if not near.all():
                self._unlikely.append(waiting[~near], run.release)

    def remove(self, ids: IntArray, releases: NDArray[np.int64]) -> None:
        """Their entries are stale from now on."""

    # ---- what is reused

    def pop(self, count: int) -> IntArray:
        ids = gather(count, self._take)
        self._turn_of[ids] = 0
        return ids

    def _take(self, count: int) -> IntArray:
        return self._first().take(count)

    def _first(self) -> RunQueue:
        if self._unlikely.runs:
            return self._unlikely
        level = self._least_worth(self._runs)
        if level is not None:
            return self._levels[level]
        while True:
            request, dropped = next(iter(self._running.items()))
            for queue in dropped.queues:
                if queue.runs:
                    return queue
            del self._running[request]

    def _least_worth(self, runs: Mapping[int, deque[Run]]) -> int | None:
        """The level whose first run has the greatest age by its worth; None if no level has a run."""
        best, most = None, 0.0
        for level, waiting in runs.items():
            if waiting:
                rank = (self._now - waiting[0].joined + 1) * 2.0 ** (-level / LEVELS)
                if rank > most:
                    best, most = level, rank
        return best

    def __iter__(self) -> Iterator[int]:
        yield from self._unlikely
        runs = {level: deque(waiting) for level, waiting in self._runs.items()}
        while (level := self._least_worth(runs)) is not None:
            yield from self._unlikely.waiting(runs[level].popleft()).tolist()
        for dropped in self._running.values():
            for queue in dropped.queues:
                yield from queue
