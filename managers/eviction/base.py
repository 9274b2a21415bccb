"""The contract of this folder: the order in which cached free blocks are reused."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray

from kvhybrid.managers.arrays import IntArray


@mypyc_attr(native_class=False)  # an exception cannot be one
class ReuseOrderError(RuntimeError):
    """An order of reuse raised, or gave blocks that it does not have."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ReuseOrder(ABC):
    """Holds the free blocks that still have a key. Blocks without one are reused before any of these.

    All calls are batches of block ids. The pool never appends a block that is in the order already, and never
    removes one that is not.
    """

    def __init__(self, release_of: NDArray[np.int64]) -> None:
        """An empty order."""
        self.release_of = release_of
        """By block id, the number of the release that freed it; 0 if not in the order. The pool writes it."""

    @abstractmethod
    def append(self, ids: IntArray, release: int) -> None:
        """Add ``ids``, freed by the release of this number; releases count up from 1. Of blocks that are otherwise
        equal, the first is to be reused first."""

    @abstractmethod
    def remove(self, ids: IntArray, releases: NDArray[np.int64]) -> None:
        """Remove ``ids``, which a request has adopted; ``releases`` are those that had freed them."""

    @abstractmethod
    def pop(self, count: int) -> IntArray:
        """Remove and return the ``count`` blocks to be reused next, as any integers. The order has as many."""

    @abstractmethod
    def __iter__(self) -> Iterator[int]:
        """The blocks in the order in which `pop` would return them."""


MakeOrder: TypeAlias = Callable[[NDArray[np.int64]], ReuseOrder]
"""What makes an order, empty, from the pool's ``release_of``."""
