"""The blocks that one request holds in the groups of one manager."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from kvhybrid.managers.arrays import IntArray

TableMark: TypeAlias = tuple[int, int, int, bool, int, tuple[int, int]]


class BlockTable:
    """One row per group; all rows have real blocks and null entries (0) at the same places.

    Entry ``j`` is the block of the tokens ``[j · B, (j + 1) · B)``, with ``B`` tokens per block.
    """

    __slots__ = ("_mark", "dropped", "ends", "ids", "keyed", "length", "tail_keyed", "tail_to_copy")

    def __init__(self, num_groups: int) -> None:
        self.ids: IntArray = np.zeros((num_groups, 0), np.int32)
        self.length = 0
        """Entries in use."""
        self.keyed = 0
        """Entries below this have been keyed or will never be."""
        self.dropped = 0
        """Entries below this are null for good; there may be null entries above it too."""
        self.tail_keyed = False
        """Whether the prompt's last, partly filled block has its key."""
        self.tail_to_copy = -1
        """Entry of a keyed state that the request will overwrite, so its key must move to a copy; -1 for none."""
        self.ends: tuple[int, int] = (0, 0)
        """Where the last step began and ended, in tokens: a state that is still held is that of one of them."""
        self._mark: TableMark = (0, 0, 0, False, -1, (0, 0))

    def reserve(self, length: int) -> None:
        """Make room for ``length`` entries and some more."""
        if length > self.ids.shape[1]:
            grown = np.zeros((self.ids.shape[0], length + 8 + length // 8), np.int32)
            if self.length:
                grown[:, : self.length] = self.ids[:, : self.length]
            self.ids = grown

    def resize(self, length: int) -> None:
        """Grow to ``length`` entries; the added ones are null."""
        self.reserve(length)
        self.length = max(self.length, length)

    def row(self, i: int) -> IntArray:
        """The entries of the ``i``-th group of the manager."""
        return self.ids[i, : self.length]

    def mark(self) -> None:
        """Note the table's state for `go_back`. Entries need no copy, since a step only appends."""
        self._mark = (self.length, self.keyed, self.dropped, self.tail_keyed, self.tail_to_copy, self.ends)

    def go_back(self) -> None:
        """Return to the state at `mark`: the step has failed."""
        self.length, self.keyed, self.dropped, self.tail_keyed, self.tail_to_copy, self.ends = self._mark
        self.ids[:, self.length :] = 0
