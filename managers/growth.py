"""What a step adds to a block table."""

from __future__ import annotations

from typing import Final

from kvhybrid.managers.arrays import Entries

NO_ENTRIES: Final = range(0)


class Growth:
    """The table entries that a step must fill, counted before any block is taken."""

    __slots__ = ("copies", "fresh", "length", "loaded", "loaded_length")

    def __init__(self, loaded: Entries, loaded_length: int, fresh: Entries, length: int, copies: int) -> None:
        self.loaded = loaded
        """Entries for tokens that are loaded from outside."""
        self.loaded_length = loaded_length
        """Length of the table with those."""
        self.fresh = fresh
        """Entries for the tokens that the step computes, and for its look-ahead."""
        self.length = length
        """Length of the table after the step."""
        self.copies = copies
        """Blocks for a private copy of a partly filled block: 0 or 1."""

    @property
    def blocks(self) -> int:
        """Blocks that each group must take."""
        return len(self.loaded) + len(self.fresh) + self.copies
