"""The joint hit by brute force: every aligned length is tried against the live sets, token by token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import lcm

from kvhybrid.cache.config import KVCacheConfig

IsCached = Callable[[int, int], int]
"""(group, prefix length in tokens) to the block keyed under it, 0 for none."""


@dataclass(frozen=True)
class Oracle:
    """``sub_block``: hits may end inside a block, on any prefix key."""

    config: KVCacheConfig
    is_cached: IsCached
    sub_block: bool

    @property
    def alignment(self) -> int:
        return self.config.hash_unit if self.sub_block else lcm(*self.config.block_sizes)

    def cacheable(self) -> Iterator[int]:
        return (g for g, group in enumerate(self.config.groups) if group.spec.cacheable)

    def margin(self, g: int) -> int:
        spec = self.config.groups[g].spec
        draft = any(other.draft for other in self.config.groups if other.spec == spec)
        if not draft or spec.state:
            return 0
        return self.config.hash_unit if self.sub_block and spec.sub_block else self.config.block_size_of(spec)

    def resumes(self, g: int, p: int, limit: int) -> bool:
        """Whether cached blocks of group ``g`` cover ``live(p)`` and the margin above ``p``."""
        spec = self.config.groups[g].spec
        size, margin = self.config.block_size_of(spec), self.margin(g)
        if spec.state:
            return bool(self.is_cached(g, p))
        read = {t for part in spec.live(p) for t in part} | set(range(p, p + margin))
        ends: dict[int, int] = {}
        for t in read:
            ends[t // size] = max(ends.get(t // size, 0), t + 1)
        return all(self.covers(g, j, end, p, limit) for j, end in ends.items())

    def covers(self, g: int, j: int, end: int, p: int, limit: int) -> bool:
        """Whether one key leads, in all groups of the spec, to block ``j`` with the tokens up to ``end``."""
        spec = self.config.groups[g].spec
        size, unit = self.config.block_size_of(spec), self.config.hash_unit
        alike = [h for h, other in enumerate(self.config.groups) if other.spec == spec]
        whole = (j + 1) * size
        bound = limit + self.margin(g)
        keys = [whole] if whole <= bound or not self.sub_block else []
        if self.sub_block and spec.sub_block:
            keys.extend(range(-(-end // unit) * unit, min(whole - 1, bound) + 1, unit))
        return any(all(self.is_cached(h, key) for h in alike) for key in keys)

    def longest(self, groups: list[int], limit: int) -> int:
        start = limit - limit % self.alignment
        for p in range(start, 0, -self.alignment):
            if all(self.resumes(g, p, limit) for g in groups):
                return p
        return 0

    def joint_hit(self, limit: int) -> int:
        return self.longest(list(self.cacheable()), limit)

    def reads_any(self, g: int, p: int) -> bool:
        return any(len(part) for part in self.config.groups[g].spec.live(p))

    def blocks(self, g: int, p: int) -> list[int]:
        """The entries of a hit of ``p`` tokens in which whole blocks end at or below ``p``."""
        spec = self.config.groups[g].spec
        size = self.config.block_size_of(spec)
        live = {t // size for part in spec.live(p) for t in part}
        return [self.is_cached(g, (j + 1) * size) if j in live else 0 for j in range(p // size)]
