"""A fixed part of the memory for each kind of layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor, isfinite

from kvhybrid.managers.pool.static import StaticPoolConfig
from kvhybrid.planning.error import PlanningError
from kvhybrid.planning.layouts.base import Arrangement, Division, KindLayout, LayerPlace


@dataclass(frozen=True, kw_only=True)
class StaticLayout(KindLayout):
    """Each kind has tensors and blocks of its own, which no other kind can use."""

    split: dict[str, float] = field(default_factory=dict)
    """Shares of the memory, by group. Empty: in proportion to what a request of the maximum length holds."""

    def __post_init__(self) -> None:
        for group, share in self.split.items():
            if not (share > 0 and isfinite(share)):
                raise ValueError(f"layout.split: the share of {group} must be above 0, found {share}")

    def divide(self, arrangement: Arrangement, memory_bytes: int, blocks: Sequence[int]) -> Division:
        sizes = arrangement.block_bytes
        left = memory_bytes - sum(sizes)  # each kind has a null block
        if left < 0:
            raise PlanningError(
                f"no memory for the cache: {memory_bytes} bytes has no room for the null blocks of "
                f"{len(sizes)} kinds, {sum(sizes)} bytes"
            )
        shares = self.shares(arrangement, blocks)
        parts = [left * share / sum(shares) for share in shares]
        counts = tuple(1 + floor(part / size) for part, size in zip(parts, sizes, strict=True))
        tensors: list[tuple[int, int]] = []
        places: dict[str, LayerPlace] = {}
        for group, count in zip(arrangement.groups, counts, strict=True):
            for layer in group.layers:
                page = arrangement.specs[layer].page_bytes
                places[layer] = LayerPlace(len(tensors), 0, page)
                tensors.append((count, page))
        return Division(sum(counts), StaticPoolConfig(counts), tuple(tensors), places)

    def shares(self, arrangement: Arrangement, blocks: Sequence[int]) -> list[Fraction]:
        """Per group, its part of the memory, relative to the others."""
        if not self.split:
            return [Fraction(count * size) for count, size in zip(blocks, arrangement.block_bytes, strict=True)]
        names = [group.name for group in arrangement.groups]
        if set(self.split) != set(names):
            raise PlanningError(
                f"layout.split must have one share for each of {', '.join(names)}, found {', '.join(self.split)}"
            )
        return [Fraction(self.split[name]) for name in names]

    def bytes_for(self, arrangement: Arrangement, blocks: Sequence[int], num_requests: int = 1) -> int:
        sizes = arrangement.block_bytes
        shares = self.shares(arrangement, blocks)
        total = sum(shares)
        needs = [
            num_requests * count * size * total / share
            for count, size, share in zip(blocks, sizes, shares, strict=True)
        ]
        return sum(sizes) - floor(-max(needs))
