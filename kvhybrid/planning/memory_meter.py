"""Measures what a planned memory holds while a cache is in use, in bytes."""

from __future__ import annotations

from kvhybrid.cache.stats import CacheStats
from kvhybrid.planning.plan import CachePlan


class MemoryMeter:
    """Converts the block counts of a cache to bytes, sample by sample.

    Wasted bytes are padding in held blocks, and blocks that are free, have no key and cannot be taken by another
    kind. ``memory/waste`` is their share of the bytes that are held or unused in this way, 0 to 1.
    """

    def __init__(self, plan: CachePlan) -> None:
        self._block_bytes = plan.block_bytes
        self._padding = plan.padding_bytes_per_block
        self._wasted = self._occupied = self._most_held = 0

    def add(self, cache: CacheStats) -> dict[str, float]:
        """The metrics of one sample."""
        metrics: dict[str, float] = {}
        held = padding = unused = 0
        for group, size, padded in zip(cache.groups, self._block_bytes, self._padding, strict=True):
            figures = {
                "bytes_held": group.blocks_live * size,
                "bytes_cached": group.blocks_reusable * size,
                "bytes_padding": group.blocks_live * padded,
                "bytes_unused": group.blocks_unused * size,
            }
            metrics.update({f"group/{group.name}/{name}": value for name, value in figures.items()})
            held += figures["bytes_held"]
            padding += figures["bytes_padding"]
            unused += figures["bytes_unused"]
        self._wasted += padding + unused
        self._occupied += held + unused
        self._most_held = max(self._most_held, held)
        occupied = held + unused
        return {**metrics, "memory/held": held, "memory/waste": (padding + unused) / occupied if occupied else 0.0}

    def figures(self) -> dict[str, float]:
        """Over all samples: the mean of ``memory/waste``, weighted by bytes, and the most bytes held."""
        return {
            "memory/mean_waste": self._wasted / self._occupied if self._occupied else 0.0,
            "memory/most_held": self._most_held,
        }
