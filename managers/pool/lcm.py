"""The pools of a memory of large pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.eviction.base import MakeOrder
from kvhybrid.managers.pool.base import PoolConfig, PoolSet
from kvhybrid.managers.pool.keys import BlockPoolError
from kvhybrid.managers.pool.large_pages import LargePages
from kvhybrid.managers.pool.small_pages import SmallPagePool


class LcmPools(PoolSet):
    """A `SmallPagePool` for each kind, over the same `LargePages`.

    A step fits if the free blocks on partly held large pages and the large pages of which no block is held are
    enough for all kinds together. Which of them a kind takes follows Jenga's order, unless another kind of the
    step needs them:

    1. unused blocks on the pages on which the request holds one,
    2. a spare large page,
    3. a whole large page, evicted: the one whose blocks were last released the longest ago,
    4. any other unused block of the kind,
    5. a cached block of the kind, in the order of reuse.
    """

    def __init__(self, pages: LargePages, pools: Sequence[SmallPagePool]) -> None:
        super().__init__(pools)
        self._pages = pages
        self._kinds = list(pools)

    @property
    def num_free(self) -> int:
        return self._pages.num_unheld

    def fits(self, need: Sequence[int], pinned: Sequence[int], spare: int) -> bool:
        pages = spare
        for k, pool in enumerate(self._kinds):
            pages += max(pinned[k], pool.pages_for(need[k]))
        return pages <= self._pages.num_unheld

    def pins(self, kind: int, hit: IntArray) -> int:
        return self._kinds[kind].count_pinned(hit)

    def will_take(self, counts: Sequence[int], held: Sequence[IntArray], spare: int = 0) -> None:
        pages, nearby, least = self._pages, [], []
        for pool, count, ids in zip(self._kinds, counts, held, strict=True):
            nearby.append(pool.unused_near(ids, count))
            least.append(pool.pages_for(count))
        surplus = pages.num_unheld - sum(least)
        if surplus < 0:
            raise BlockPoolError(
                f"{list(counts)} blocks of the kinds need {sum(least)} large pages; {pages.num_unheld} are free"
            )
        surplus = max(surplus - spare, 0)
        grants: list[int] = []
        for k, pool in enumerate(self._kinds):
            wanted = -(-(counts[k] - len(nearby[k])) // pool.smalls)
            grants.append(min(wanted, least[k] + surplus))
            surplus -= grants[k] - least[k]
        while pages.num_spare < sum(grants):
            page, kind = pages.oldest_whole()
            self._kinds[kind].vacate(page)
        try:
            for k, pool in enumerate(self._kinds):
                if counts[k]:
                    pool.set_aside(counts[k], nearby[k], grants[k])
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        for pool in self._kinds:
            pool.put_back()

    def unused(self) -> list[int]:
        return [pool.num_unused for pool in self._kinds]

    def reset(self) -> bool:
        if self._pages.num_unheld != self._pages.num_pages - 1:
            return False
        return all(pool.reset() for pool in self._kinds)

    def shortage(self, need: Sequence[int]) -> tuple[int, int]:
        pages = sum([-(-count // pool.smalls) for count, pool in zip(need, self._kinds, strict=True)])
        return pages, self._pages.num_pages - 1


@dataclass(frozen=True)
class LcmPoolConfig(PoolConfig):
    """Large pages, the null page included, and how many blocks of each kind one of them holds."""

    num_pages: int
    smalls: tuple[int, ...]
    sliding: tuple[bool, ...]
    """Of each kind, whether a request also gives blocks back before it ends."""

    unit: ClassVar[str] = "large pages"

    @property
    def num_kinds(self) -> int:
        return len(self.smalls)

    @property
    def num_units(self) -> int:
        return self.num_pages

    @property
    def num_usable(self) -> int:
        return self.num_pages - 1

    def pages_for_one(self, blocks: Sequence[int]) -> int:
        """Large pages that one request needs at most. What slides may begin and end in the middle of a page."""
        return sum(
            -(-count // smalls) if not slides or count < 2 else (count - 2) // smalls + 2
            for count, smalls, slides in zip(blocks, self.smalls, self.sliding, strict=True)
        )

    def has_room(self, blocks: Sequence[int]) -> bool:
        return self.pages_for_one(blocks) <= self.num_usable

    def num_requests(self, blocks: Sequence[int]) -> int:
        low, high = 0, int(self.concurrency(blocks))
        while low < high:
            middle = (low + high + 1) // 2
            pages = sum(-(-middle * count // smalls) for count, smalls in zip(blocks, self.smalls, strict=True))
            low, high = (middle, high) if pages <= self.num_usable else (low, middle - 1)
        return low

    def concurrency(self, blocks: Sequence[int]) -> Fraction:
        pairs = zip(blocks, self.smalls, strict=True)
        return self.num_usable / sum((Fraction(count, smalls) for count, smalls in pairs), Fraction(0))

    def build(self, num_groups: int, order: MakeOrder) -> PoolSet:
        pages = LargePages(self.num_pages)
        pools = [SmallPagePool(pages, k, smalls, num_groups, order) for k, smalls in enumerate(self.smalls)]
        return LcmPools(pages, pools)
