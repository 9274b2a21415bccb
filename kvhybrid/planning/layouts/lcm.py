"""Large pages that any kind of layer can carve into small ones (Jenga, SOSP'25)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from kvhybrid.managers.pool.lcm import LcmPoolConfig
from kvhybrid.planning.error import PlanningError
from kvhybrid.planning.layouts.base import Arrangement, Division, KindLayout, LayerPlace


@dataclass(frozen=True, kw_only=True)
class LcmLayout(KindLayout):
    """A large page has the least common multiple of the kinds' block sizes, so every kind fills it exactly.

    Large page 0 is the null page: block 0 of every kind lies there.
    """

    def divide(self, arrangement: Arrangement, memory_bytes: int, blocks: Sequence[int]) -> Division:
        config = self._pools(arrangement, memory_bytes)
        places: dict[str, LayerPlace] = {}
        for group, size in zip(arrangement.groups, arrangement.block_bytes, strict=True):
            offset = 0
            for layer in group.layers:
                places[layer] = LayerPlace(0, offset, size)
                offset += arrangement.specs[layer].page_bytes
        large = lcm(*arrangement.block_bytes)
        return Division(config.num_pages, config, ((config.num_pages, large),), places)

    def bytes_for(self, arrangement: Arrangement, blocks: Sequence[int], num_requests: int = 1) -> int:
        large = lcm(*arrangement.block_bytes)
        return large * (1 + num_requests * self._pools(arrangement, 2 * large).pages_for_one(blocks))

    def _pools(self, arrangement: Arrangement, memory_bytes: int) -> LcmPoolConfig:
        sizes = arrangement.block_bytes
        large = lcm(*sizes)
        num_pages = memory_bytes // large
        if num_pages < 2:
            raise PlanningError(
                f"no memory for the cache: {memory_bytes} bytes has no room for a large page in addition to the "
                f"null page; it takes {large} bytes, the least common multiple of blocks of "
                f"{', '.join(map(str, sizes))} bytes"
            )
        sliding = tuple(not g.spec.prefix and g.spec.source == "decoder" for g in arrangement.groups)
        return LcmPoolConfig(num_pages, tuple(large // size for size in sizes), sliding)
