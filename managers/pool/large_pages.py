"""The large pages that all kinds of block share."""

from __future__ import annotations

from typing import Final

import numpy as np

from kvhybrid.managers.arrays import IntArray

NOBODY: Final = -1
"""The owner of a page that is not assigned to a kind."""


class LargePages:
    """Pages ``1 … num_pages - 1``; page 0 has the null blocks.

    A page is spare, or assigned to a kind that carves it into blocks. An assigned page is *whole* if none of its
    blocks is held. It is then cached: if it had no key either, it would be spare.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.owner: IntArray = np.full(num_pages, NOBODY, np.int32)
        """The kind that each page is assigned to."""
        self.whole: dict[int, int] = {}
        """The kind of each whole page. The page whose blocks were last released the longest ago comes first."""
        self._returned: list[int] = []
        self._next = 1

    @property
    def num_spare(self) -> int:
        """Pages that are not assigned."""
        return len(self._returned) + self.num_pages - self._next

    @property
    def num_unheld(self) -> int:
        """Pages of which no block is held: spare or whole."""
        return self.num_spare + len(self.whole)

    def assign(self, kind: int) -> int:
        """Assign a spare page to ``kind``: the one that was returned last, or else one that was never used."""
        if self._returned:
            page = self._returned.pop()
        else:
            page, self._next = self._next, self._next + 1
        self.owner[page] = kind
        return page

    def give_back(self, page: int) -> None:
        """Make ``page``, which has no held block and no key, spare."""
        self.owner[page] = NOBODY
        self._returned.append(page)

    def oldest_whole(self) -> tuple[int, int]:
        """The page to evict next, and its kind."""
        return next(iter(self.whole.items()))
