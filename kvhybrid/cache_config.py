"""What a cache is made of: its groups and its number of blocks."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, lcm

from kvhybrid.specs import KVCacheSpec


@dataclass(frozen=True)
class KVCacheGroup:
    """Layers that share one block table. Layer i of every group lies in the same tensor."""

    name: str
    spec: KVCacheSpec
    layers: tuple[str, ...] = ()
    draft: bool = False
    """A draft model (EAGLE) reads this group: its hits drop their last unit, which the draft recomputes."""


@dataclass(frozen=True)
class KVCacheConfig:
    """The groups of a model and the pool that they share."""

    groups: tuple[KVCacheGroup, ...]
    num_blocks: int
    """Blocks in the pool, the null block included."""
    hash_block_size: int | None = None
    """Tokens per prefix key; the greatest common divisor of the groups' block sizes where not given."""
    context_parallel: int = 1
    """Ranks over which a block's tokens are spread (DCP)."""

    def block_size_of(self, spec: KVCacheSpec) -> int:
        """Tokens that one block of ``spec`` covers over all ranks."""
        return spec.block_size * (self.context_parallel if spec.sharded else 1)

    @property
    def block_sizes(self) -> tuple[int, ...]:
        return tuple(self.block_size_of(group.spec) for group in self.groups)

    @property
    def scheduler_block_size(self) -> int:
        """The least common multiple of the groups' block sizes: where all of them have a boundary."""
        return lcm(*self.block_sizes)

    @property
    def hash_unit(self) -> int:
        """Tokens per prefix key."""
        cacheable = [self.block_size_of(g.spec) for g in self.groups if g.spec.cacheable]
        return self.hash_block_size or gcd(*(cacheable or self.block_sizes))
