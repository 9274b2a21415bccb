"""A fixed number of blocks for each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import ClassVar

from kvhybrid.managers.eviction.base import MakeOrder
from kvhybrid.managers.kernel.plain import REUSABLE
from kvhybrid.managers.pool.base import PoolConfig, PoolSet
from kvhybrid.managers.pool.block_pool import BlockPool


class StaticPools(PoolSet):
    """Independent pools: what one kind leaves free, no other can use."""

    @property
    def num_free(self) -> int:
        return sum([pool.num_free for pool in self.pools])

    def fits(self, need: Sequence[int], pinned: Sequence[int], spare: int) -> bool:
        """``spare``, a number of blocks of all pools, is shared out in proportion to their sizes."""
        total = sum([pool.num_blocks for pool in self.pools])
        return all(
            count + spare * pool.num_blocks // total <= pool.num_free
            for count, pool in zip(need, self.pools, strict=True)
        )

    def unused(self) -> list[int]:
        return [pool.num_free - int(pool.counts[REUSABLE].sum()) for pool in self.pools]

    def reset(self) -> bool:
        if any(pool.num_free != pool.num_blocks - 1 for pool in self.pools):
            return False
        return all(pool.reset() for pool in self.pools)

    def shortage(self, need: Sequence[int]) -> tuple[int, int]:
        usable = [pool.num_blocks - 1 for pool in self.pools]
        return max(zip(need, usable, strict=True), key=lambda pair: pair[0] - pair[1])


@dataclass(frozen=True)
class StaticPoolConfig(PoolConfig):
    """The blocks of each kind, its null block included."""

    num_blocks: tuple[int, ...]

    unit: ClassVar[str] = "blocks"

    @property
    def num_kinds(self) -> int:
        return len(self.num_blocks)

    @property
    def num_units(self) -> int:
        return sum(self.num_blocks)

    @property
    def num_usable(self) -> int:
        return sum(self.num_blocks) - len(self.num_blocks)

    def has_room(self, blocks: Sequence[int]) -> bool:
        return self.concurrency(blocks) >= 1

    def num_requests(self, blocks: Sequence[int]) -> int:
        return floor(self.concurrency(blocks))

    def concurrency(self, blocks: Sequence[int]) -> Fraction:
        pairs = zip(self.num_blocks, blocks, strict=True)
        return min(Fraction(have - 1, count) for have, count in pairs if count)

    def build(self, num_groups: int, order: MakeOrder) -> PoolSet:
        return StaticPools([BlockPool(count, num_groups, order) for count in self.num_blocks])
