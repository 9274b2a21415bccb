"""The interface of orders of reuse: the order in which cached free blocks are reused."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.prefix.index import PrefixIndex
from kvhybrid.managers.retention.base import RetainedRequest
from kvhybrid.specs import KVCacheSpec


@mypyc_attr(native_class=False)  # an exception cannot be one
class ReuseOrderError(RuntimeError):
    """An order of reuse raised, or gave blocks that it does not have."""


class BlockInfo:
    """What an order of reuse sees of a pool's blocks. The arrays, by block id, are live views: only read them."""

    def __init__(self, release_of: NDArray[np.int64], group_of: IntArray, number_of: IntArray) -> None:
        self.release_of = release_of
        """The number of the release that freed a block; 0 if it is not in the order."""
        self.group_of = group_of
        """The group of a block."""
        self.number_of = number_of
        """The prefix number that a block is keyed under: blocks of several groups with one number end the same
        prefix. 0 for a block that was evicted while it was in the order."""
        self.index: PrefixIndex | None = None
        self.specs: Sequence[KVCacheSpec] = ()
        """What the layers of each group keep."""
        self.block_units: Sequence[int] = ()
        """Per group, how many units of ``hash_block_size`` a block has."""
        self.unit = 1
        """Tokens per unit."""
        self.request: RetainedRequest | None = None
        """The request whose blocks are being released; None for copies, which belong to no request."""
        self.is_end = False
        """Whether that request releases all its blocks, and not only those that it no longer reads."""

    def units(self, ids: IntArray) -> IntArray:
        """The positions of ``ids``, which have keys: where their prefixes end, in units of ``hash_block_size``."""
        assert self.index is not None
        return self.index.units_of(self.number_of[ids])

    def spec_of(self, ids: IntArray) -> KVCacheSpec | None:
        """What the groups of ``ids``, which one call released, keep: they have equal specs. None if the pool was
        built without specs."""
        return self.specs[int(self.group_of[ids[0]])] if self.specs else None

    def blocks_to_resume(self, units: int) -> tuple[int, int]:
        """How many blocks a resume after ``units`` needs: of the groups that keep the whole prefix, of others."""
        whole = others = 0
        for spec, size in zip(self.specs, self.block_units, strict=True):
            tokens, block_size = units * self.unit, size * self.unit
            count = sum(len(blocks) for blocks in spec.live_blocks(tokens, block_size)) if spec.cacheable else 0
            if spec.prefix:
                whole += count
            else:
                others += count
        return whole, others


@mypyc_attr(allow_interpreted_subclasses=True)
class ReuseOrder(ABC):
    """Holds the free blocks that still have a key. Blocks without a key are reused before any of these.

    All calls take batches of block ids. The pool never appends a block that is already in the order, and never
    removes one that is not.
    """

    def __init__(self, blocks: BlockInfo) -> None:
        """An empty order of a pool's blocks."""
        self.blocks = blocks

    @abstractmethod
    def append(self, ids: IntArray, release: int) -> None:
        """Add ``ids``, freed by release number ``release``; releases count up from 1. Among blocks that are
        otherwise equal, the first is reused first. `BlockInfo.request` tells which request released them."""

    @abstractmethod
    def remove(self, ids: IntArray, releases: NDArray[np.int64]) -> None:
        """Remove ``ids``, which a request has adopted; ``releases`` are the releases that freed them."""

    @abstractmethod
    def pop(self, count: int) -> IntArray:
        """Remove and return the next ``count`` blocks to reuse, as integers of any type. The order has at least
        ``count`` blocks."""

    @abstractmethod
    def __iter__(self) -> Iterator[int]:
        """The blocks in the order in which `pop` would return them."""

    def hit(self, ids: IntArray) -> None:  # noqa: B027, a class that does not override it pays nothing
        """A request adopts ``ids``, which are free or held by others. The free ones are removed after this."""


MakeOrder: TypeAlias = Callable[[BlockInfo], ReuseOrder]
"""Creates an empty order for a pool."""
