"""What was reused last: the prefixes whose blocks are gone, for orders that learn from their return."""

from __future__ import annotations

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.eviction.base import BlockInfo


@mypyc_attr(allow_interpreted_subclasses=True)
class Ghosts:
    """The last ``size`` pairs of group and prefix number that were added.

    All are forgotten when prefix numbers are recycled, since a number may be another prefix's then.
    """

    def __init__(self, blocks: BlockInfo, size: int) -> None:
        self._blocks = blocks
        self._size = size
        self._added_at = np.zeros((1, 1), np.int64)
        """By group and number, how many were added up to this one; 0 for none."""
        self._added = 0
        self._generation = 0

    def add(self, ids: IntArray) -> None:
        """``ids`` are reused now, but still have their keys."""
        groups, numbers = self._places(ids)
        known = numbers > 0
        groups, numbers = groups[known], numbers[known]
        count = len(numbers)
        self._added_at[groups, numbers] = np.arange(self._added + 1, self._added + count + 1)
        self._added += count

    def take(self, ids: IntArray) -> NDArray[np.bool_]:
        """A mask of those of ``ids`` whose prefix was here. It is here no longer."""
        groups, numbers = self._places(ids)
        at = self._added_at[groups, numbers]
        self._added_at[groups, numbers] = 0
        return np.asarray((at > 0) & (self._added - at < self._size))

    def _places(self, ids: IntArray) -> tuple[IntArray, IntArray]:
        """Groups and numbers of ``ids``; the table has room for them."""
        blocks, index = self._blocks, self._blocks.index
        groups, numbers = blocks.group_of[ids], blocks.number_of[ids]
        if index is not None and index.generation != self._generation:
            self._generation = index.generation
            self._added_at[:] = 0
        rows, columns = self._added_at.shape
        if len(ids) and (groups.max() >= rows or numbers.max() >= columns):
            wanted = (max(rows, int(groups.max()) + 1), max(columns, 2 * int(numbers.max()) + 1))
            grown = np.zeros(wanted, np.int64)
            grown[:rows, :columns] = self._added_at
            self._added_at = grown
        return groups, numbers
