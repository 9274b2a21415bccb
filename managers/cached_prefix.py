"""Which blocks of a prompt are cached, for searches that move down and keep their place."""

from __future__ import annotations

import numpy as np

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.pool.block_pool import BlockPool


class CachedPrefix:
    """The cached blocks under a request's prefix, for groups that are searched together.

    Entry ``j`` is cached if every group has a block for it. Answers are remembered, so that calls of one method
    whose ``end`` never rises probe no entry twice.
    """

    def __init__(self, pool: BlockPool, groups: IntArray, path: IntArray, stride: int) -> None:
        """
        Args:
            groups: Indices of the groups, all in ``pool``.
            path: The prefix numbers of a request, one per unit.
            stride: Units per entry.
        """
        self._numbers = path if stride == 1 else path[stride - 1 :: stride]
        self._arrays = pool.arrays
        self._rows = groups
        self.num_groups = len(groups)
        self.num_entries = len(self._numbers)
        self._cached_from = self._cached_to = 0
        """Entries between these are cached."""
        self._last_present = (-1, -1, 0)
        """The last answer of `last_present`, with the end and the step that it was for."""
        self._last_run = (-1, -1, 0)
        """The last answer of `last_run`, with the end and the length that it was for."""

    def last_missing(self, start: int, end: int) -> int:
        """The highest entry in ``[start, end)`` that some group lacks, or -1."""
        if (self._cached_from <= start and end <= self._cached_to) or start >= end:
            return -1
        if not self._cached_from <= end <= self._cached_to:
            self._cached_from = self._cached_to = end
        missing = self._arrays.last_missing(self._rows, self._numbers, start, self._cached_from)
        self._cached_from = missing + 1 if missing >= 0 else start
        return missing

    def first_missing(self, start: int, end: int) -> int:
        """The lowest entry in ``[start, end)`` that some group lacks, or ``end``."""
        return self._arrays.first_missing(self._rows, self._numbers, start, end)

    def last_present(self, end: int, step: int) -> int:
        """The highest cached entry ``j < end`` with ``(j + 1) % step == 0``, or -1."""
        found, asked, by = self._last_present
        if by == step and found < end <= asked:
            return found
        found = self._arrays.last_present(self._rows, self._numbers, step, end)
        self._last_present = (found, end, step)
        return found

    def last_run(self, end: int, length: int) -> int:
        """The highest ``e <= end`` such that the ``length`` entries below ``e`` are all cached, or -1."""
        found, asked, by = self._last_run
        if by == length and found <= end <= asked:
            return found
        found = self._arrays.last_run(self._rows, self._numbers, length, end)
        self._last_run = (found, end, length)
        return found

    def blocks(self, start: int, end: int) -> IntArray:
        """The blocks of entries ``[start, end)``, one row per group; they must be cached."""
        found = np.empty((self.num_groups, max(end - start, 0)), np.int32)
        if start < end:
            self._arrays.gather(self._rows, self._numbers[start:end], found)
        return found
