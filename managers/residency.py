"""Which blocks of a prompt are cached, asked in batches and never twice."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.block_pool import BlockPool

PAGE = 256
"""Entries probed at once."""


class Residency:
    """The cached blocks under a request's prefix, for groups that are searched together.

    Entry ``j`` is cached when every group has a block for it. Entries are probed a page at a time, when first
    asked for; ``num_probes`` counts them.
    """

    def __init__(self, pool: BlockPool, groups: Sequence[int], path: IntArray, stride: int) -> None:
        self._numbers = path[stride - 1 :: stride]
        self._index = pool.index
        self._rows = np.array(groups)
        self.num_groups = len(groups)
        self.num_entries = len(self._numbers)
        self.num_probes = 0
        self._ids: dict[int, IntArray] = {}
        self._missing: dict[int, list[int]] = {}
        self._present: dict[int, list[int]] = {}
        self._runs: dict[int, np.ndarray] = {}
        self._absent_below = 0

    def _probe(self, page: int) -> list[int]:
        numbers = self._numbers[page * PAGE : (page + 1) * PAGE]
        self.num_probes += len(numbers)
        found = self._index[self._rows[:, None], numbers]
        self._ids[page] = found
        missing: list[int] = (np.flatnonzero((found == 0).any(axis=0)) + page * PAGE).tolist()
        self._missing[page] = missing
        return missing

    def missing_on(self, page: int) -> list[int]:
        """The entries of ``page`` that some group lacks, ascending."""
        missing = self._missing.get(page)
        return self._probe(page) if missing is None else missing

    def last_missing(self, start: int, end: int) -> int:
        """The highest entry in ``[start, end)`` that some group lacks, or -1."""
        for page in range((end - 1) // PAGE, start // PAGE - 1, -1):
            missing = self.missing_on(page)
            at = bisect_left(missing, end) - 1
            if at >= 0:
                return missing[at] if missing[at] >= start else -1
        return -1

    def first_missing(self, start: int, end: int) -> int:
        """The lowest entry in ``[start, end)`` that some group lacks, or ``end``."""
        for page in range(start // PAGE, -(-end // PAGE)):
            missing = self.missing_on(page)
            at = bisect_left(missing, start)
            if at < len(missing):
                return min(missing[at], end)
        return end

    def last_present(self, end: int, step: int) -> int:
        """The highest cached entry ``j < end`` with ``(j + 1) % step == 0``, or -1; ``step`` must not vary."""
        if end <= self._absent_below:
            return -1
        for page in range((end - 1) // PAGE, -1, -1):
            present = self._present.get(page)
            if present is None:
                self.missing_on(page)
                entries = np.flatnonzero(self._ids[page].all(axis=0)) + page * PAGE
                present = self._present[page] = entries[(entries + 1) % step == 0].tolist()
            at = bisect_left(present, end) - 1
            if at >= 0:
                return present[at]
        self._absent_below = end
        return -1

    def last_run(self, end: int, length: int) -> int:
        """The highest ``e <= end`` such that the ``length`` entries below ``e`` are all cached, or -1."""
        for page in range((end - 1) // PAGE, -1, -1):
            base = page * PAGE
            runs = self._runs_on(page)[: end - base]
            long_enough = np.flatnonzero(runs >= length)
            if len(long_enough):
                return base + int(long_enough[-1]) + 1
            # The run that the page begins with may go on below it; only its top end needs a look.
            lead = int((runs == np.arange(1, len(runs) + 1)).sum())
            start = base + lead - length
            if lead and start >= 0 and self.last_missing(start, base) < 0:
                return base + lead
        return -1

    def _runs_on(self, page: int) -> np.ndarray:
        """For every entry of ``page``, how many cached entries end with it, from the page's start on."""
        runs = self._runs.get(page)
        if runs is None:
            self.missing_on(page)
            at = np.arange(self._ids[page].shape[1])
            absent = (self._ids[page] == 0).any(axis=0)
            runs = self._runs[page] = at - np.maximum.accumulate(np.where(absent, at, -1))
        return runs

    def blocks(self, start: int, end: int) -> IntArray:
        """The blocks of entries ``[start, end)``, one row per group; they must be cached."""
        if start >= end:
            return np.zeros((self.num_groups, 0), np.int32)
        pages = range(start // PAGE, -(-end // PAGE))
        for page in pages:
            self.missing_on(page)
        parts = [self._ids[page] for page in pages]
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        offset = pages.start * PAGE
        return whole[:, start - offset : end - offset]
