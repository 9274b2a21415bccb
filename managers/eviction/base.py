"""The contract of this folder: the order in which cached free blocks are reused."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from kvhybrid.managers.arrays import IntArray


class ReuseOrder(ABC):
    """Holds the free blocks that still have a key. Blocks without one are reused before any of these.

    All calls are batches of block ids. The pool never appends a block that is in the order already, and never
    removes one that is not.
    """

    @abstractmethod
    def __init__(self, num_blocks: int) -> None:
        """An empty order for block ids below ``num_blocks``."""

    @abstractmethod
    def append(self, ids: IntArray) -> None:
        """Blocks that have just become free; among equals the first is to be reused first."""

    @abstractmethod
    def remove(self, ids: IntArray) -> None:
        """Blocks that a request has adopted again."""

    @abstractmethod
    def pop(self, count: int) -> IntArray:
        """Take out the ``count`` blocks that are to be reused next; the pool knows that there are as many."""

    @abstractmethod
    def __iter__(self) -> Iterator[int]:
        """The blocks in the order in which `pop` would give them."""
