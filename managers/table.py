"""The blocks that one request holds in the groups of one manager."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from kvhybrid.managers.arrays import IntArray

TableMark: TypeAlias = tuple[int, int, int, bool, int, tuple[int, int]]


class BlockTable:
    """One row per group; all rows have real blocks and null entries (0) at the same places.

    Entry ``j`` stands for the tokens ``[j · B, (j + 1) · B)``.
    """

    __slots__ = ("_mark", "dropped", "ends", "ids", "keyed", "length", "tail_keyed", "tail_to_copy")

    def __init__(self, num_groups: int) -> None:
        self.ids: IntArray = np.zeros((num_groups, 0), np.int32)
        self.length = 0
        """Entries in use."""
        self.keyed = 0
        """Entries below this have been keyed, or passed over for good."""
        self.dropped = 0
        """Entries below this are null and stay so; above it there may be null entries too."""
        self.tail_keyed = False
        """Whether the prompt's last partial block has got its key."""
        self.tail_to_copy = -1
        """A state's entry whose key must move to a copy before the request overwrites it; -1 for none."""
        self.ends: tuple[int, int] = (0, 0)
        """Where the last step began and ended, in tokens: a state that is still held stands for one of them."""
        self._mark: TableMark = (0, 0, 0, False, -1, (0, 0))

    def reserve(self, length: int) -> None:
        """Have room for ``length`` entries and some more."""
        if length > self.ids.shape[1]:
            grown = np.zeros((self.ids.shape[0], length + 8 + length // 8), np.int32)
            if self.length:
                grown[:, : self.length] = self.ids[:, : self.length]
            self.ids = grown

    def resize(self, length: int) -> None:
        """Have ``length`` entries, the added ones null."""
        self.reserve(length)
        self.length = max(self.length, length)

    def row(self, i: int) -> IntArray:
        """The entries of the ``i``-th group of the manager."""
        return self.ids[i, : self.length]

    def mark(self) -> None:
        """Note where the table stands, to go back to when a step fails: a step only appends."""
        self._mark = (self.length, self.keyed, self.dropped, self.tail_keyed, self.tail_to_copy, self.ends)

    def go_back(self) -> None:
        """Drop the entries that were appended since the last mark."""
        self.length, self.keyed, self.dropped, self.tail_keyed, self.tail_to_copy, self.ends = self._mark
        self.ids[:, self.length :] = 0
