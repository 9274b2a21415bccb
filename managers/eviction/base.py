"""The contract of this folder: the order in which cached free blocks are reused."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray

from kvhybrid.managers.arrays import IntArray


@mypyc_attr(allow_interpreted_subclasses=True)
class ReuseOrder(ABC):
    """Holds the free blocks that still have a key. Blocks without one are reused before any of these.

    All calls are batches of block ids. The pool never appends a block that is in the order already, and never
    removes one that is not.
    """

    def __init__(self, release_of: NDArray[np.int64]) -> None:
        """An empty order."""
        self.release_of = release_of
        """By block id, the number of the release that freed it; 0 where it is not in the order. The pool's."""

    @abstractmethod
    def append(self, ids: IntArray, release: int) -> None:
        """Blocks that the ``release`` of this number has freed; releases count up from 1. Among equals the first
        is to be reused first."""

    @abstractmethod
    def remove(self, ids: IntArray, releases: NDArray[np.int64]) -> None:
        """Blocks that a request has adopted again, and the releases that had freed them."""

    @abstractmethod
    def pop(self, count: int) -> IntArray:
        """Take out the ``count`` blocks that are to be reused next; the pool knows that there are as many."""

    @abstractmethod
    def __iter__(self) -> Iterator[int]:
        """The blocks in the order in which `pop` would give them."""
