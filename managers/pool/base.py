"""The contract of this folder: how the blocks of a cache are divided into pools.

By default all groups share one `BlockPool`, since all their pages have one size. A memory layout that gives each
kind of block its own size plans a `PoolConfig`, which builds a `PoolSet`: one pool per kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.eviction.base import MakeOrder
from kvhybrid.managers.pool.block_pool import BlockPool


class PoolSet(ABC):
    """The pools of one cache. A *kind* is a set of groups in lockstep, and an index into ``pools``."""

    def __init__(self, pools: Sequence[BlockPool]) -> None:
        self.pools = list(pools)
        """One per kind."""

    @property
    @abstractmethod
    def num_free(self) -> int:
        """Units of memory that no request holds, of those that `PoolConfig.num_units` counts."""

    @abstractmethod
    def fits(self, need: Sequence[int], pinned: Sequence[int], spare: int) -> bool:
        """Whether a step fits: `will_take` and the calls of `BlockPool.take_rows` after it then cannot fail.

        Args:
            need: Per kind, the free blocks that the step takes, adopted ones included.
            pinned: Per kind, what `pins` returned for the blocks that the step adopts.
            spare: Units of memory to leave free.
        """

    def pins(self, kind: int, hit: IntArray) -> int:
        """How much memory the adoption of ``hit`` takes from other kinds, for `fits`."""
        return 0

    def will_take(  # noqa: B027, optional
        self, counts: Sequence[int], held: Sequence[IntArray], spare: int = 0
    ) -> None:
        """Announce a step that fits and whose hits are adopted.

        Args:
            counts: Per kind, the blocks that the step takes.
            held: Per kind, those that the request holds.
            spare: Units of memory to leave free, as for `fits`.
        """

    def cancel(self) -> None:  # noqa: B027, optional
        """Return what `will_take` has set aside: the step failed before its blocks were taken."""

    @abstractmethod
    def unused(self) -> list[int]:
        """Per kind, the free blocks without a key that no other kind can take."""

    @abstractmethod
    def reset(self) -> bool:
        """Drop all keys if no block is held; otherwise do nothing and return False."""

    @abstractmethod
    def shortage(self, need: Sequence[int]) -> tuple[int, int]:
        """What a request that takes ``need`` blocks per kind needs, and what an empty cache has."""


class PoolConfig(ABC):
    """A memory that is divided into pools, as it was planned."""

    unit: ClassVar[str]
    """The name of a unit of memory, in the plural."""

    @property
    @abstractmethod
    def num_kinds(self) -> int: ...

    @property
    @abstractmethod
    def num_units(self) -> int:
        """Units of memory, those of null blocks included."""

    @property
    @abstractmethod
    def num_usable(self) -> int:
        """Units of memory that can be handed out."""

    @abstractmethod
    def has_room(self, blocks: Sequence[int]) -> bool:
        """Whether one request that holds at most ``blocks`` blocks of each kind always fits if it is alone."""

    @abstractmethod
    def num_requests(self, blocks: Sequence[int]) -> int:
        """How many requests that hold ``blocks`` blocks of each kind fit at once in an empty cache."""

    @abstractmethod
    def concurrency(self, blocks: Sequence[int]) -> Fraction:
        """As `num_requests`, not rounded."""

    @abstractmethod
    def build(self, num_groups: int, order: MakeOrder) -> PoolSet:
        """Create the pools, all empty."""
