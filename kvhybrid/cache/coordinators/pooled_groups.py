"""The groups of a cache with a pool for each kind of block."""

from __future__ import annotations

from collections.abc import Sequence

from kvhybrid.cache.blocks import KVCacheBlocks
from kvhybrid.cache.coordinators.allocation import Allocation
from kvhybrid.cache.coordinators.groups import Groups
from kvhybrid.cache.coordinators.request_tables import RequestTables
from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.eviction.base import MakeOrder
from kvhybrid.managers.growth import Growth


class PooledGroups(Groups):
    """As `Groups`, for a config with ``pools``: what fits is decided by their `PoolSet`."""

    def _make_pools(self, order: MakeOrder) -> None:
        assert self.config.pools is not None
        self.pool_set = self.config.pools.build(len(self.config.groups), order)
        self.pools = self.pool_set.pools
        self.pool_of = list(range(len(self.pools)))
        self._pinned = [0] * len(self.pools)
        self._spare = 0
        self._announced: tuple[list[int], RequestTables] | None = None

    @property
    def num_free(self) -> int:
        """Units of memory that no request holds."""
        return self.pool_set.num_free

    def unused(self) -> list[int]:
        return self.pool_set.unused()

    def shortage(self, need: list[int]) -> tuple[int, int]:
        return self.pool_set.shortage(need)

    def demand(self, growths: list[Growth], hits: Sequence[IntArray] | None) -> list[int]:
        """As for `Groups`; also notes what the adoption of ``hits`` pins, for `fits`."""
        for c in range(len(self.managers)):
            self._pinned[c] = self.pool_set.pins(c, hits[c]) if hits else 0
        return super().demand(growths, hits)

    def fits(self, need: list[int], spare: int) -> bool:
        """Whether the pools have the blocks of ``need`` for the allocation that `demand` was last called for, and
        ``spare`` units of memory more."""
        self._spare = spare
        return self.pool_set.fits(need, self._pinned, spare)

    def commit(
        self,
        held: RequestTables,
        hits: Sequence[IntArray] | None,
        growths: list[Growth],
        allocation: Allocation,
    ) -> KVCacheBlocks:
        counts = [g.blocks * len(m.groups) for g, m in zip(growths, self.managers, strict=True)]
        self._announced = (counts, held)
        try:
            return super().commit(held, hits, growths, allocation)
        except BaseException:
            self.pool_set.cancel()
            raise

    def _take(self, counts: list[int]) -> list[IntArray]:
        if self._announced is not None:
            (every, held), self._announced = self._announced, None
            blocks = [table.ids[:, : table.length] for _, table in held.pairs]
            self.pool_set.will_take(every, blocks, self._spare)
        return super()._take(counts)

    def reset_keys(self) -> bool:
        return self.pool_set.reset()
