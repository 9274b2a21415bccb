"""The configuration of a cache: its groups and its number of blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd, lcm
from typing import TYPE_CHECKING

from kvhybrid.specs import KVCacheSpec

if TYPE_CHECKING:
    from kvhybrid.managers.pool.base import PoolConfig


class CacheConfigError(ValueError):
    """A cache configuration that cannot work."""


@dataclass(frozen=True)
class KVCacheGroup:
    """Layers that share one block table. The i-th layers of all groups share one tensor of the pool."""

    name: str
    spec: KVCacheSpec
    layers: tuple[str, ...] = ()
    draft: bool = False
    """A draft model (EAGLE) reads this group: its hits drop their last unit, which the draft recomputes."""
    private_blocks: int | None = None
    """Blocks of the group's own pool, its null block included; None if it uses the shared pool."""


@dataclass(frozen=True)
class KVCacheConfig:
    """The groups of a model, and the pool that they share, or the pools that they have."""

    groups: tuple[KVCacheGroup, ...]
    num_blocks: int
    """Blocks of the shared pool, the null block included; with ``pools``, their units of memory."""
    hash_block_size: int | None = None
    """Tokens per prefix key; the greatest common divisor of the cacheable groups' block sizes by default."""
    context_parallel: int = 1
    """Ranks over which a block's tokens are spread (DCP)."""
    pools: PoolConfig | None = None
    """A pool for each set of groups in lockstep; None if all groups share one."""

    def block_size_of(self, spec: KVCacheSpec) -> int:
        """Tokens that one block of ``spec`` covers over all ranks."""
        return spec.block_size * (self.context_parallel if spec.sharded else 1)

    @property
    def num_usable(self) -> int:
        """``num_blocks`` without those that are never handed out."""
        return self.num_blocks - 1 if self.pools is None else self.pools.num_usable

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Per group, tokens that one block covers over all ranks."""
        return tuple(self.block_size_of(group.spec) for group in self.groups)

    def lockstep(self) -> tuple[tuple[int, ...], ...]:
        """The indices of the groups that share a manager: those of equal spec on the same pool."""
        together: dict[object, list[int]] = {}
        for g, group in enumerate(self.groups):
            key = (group.spec, g if group.private_blocks else None)
            together.setdefault(key, []).append(g)
        return tuple(tuple(members) for members in together.values())

    @cached_property
    def scheduler_block_size(self) -> int:
        """Tokens between block boundaries that all groups share: the least common multiple of block sizes."""
        return lcm(*self.block_sizes)

    @cached_property
    def hash_unit(self) -> int:
        """Tokens per prefix key."""
        cacheable = [self.block_size_of(g.spec) for g in self.groups if g.spec.cacheable]
        return self.hash_block_size or gcd(*(cacheable or self.block_sizes))

    def check(self, enable_caching: bool, retention_interval: int | None) -> None:
        """Raise CacheConfigError if it is invalid, with the key, what was found and what is accepted."""
        if not self.groups:
            raise CacheConfigError("groups: a cache needs at least one group, found none")
        for group in self.groups:
            if self.context_parallel > 1 and not group.spec.context_parallel:
                raise CacheConfigError(
                    f"group {group.name!r}: a {group.spec.kind} group cannot run under context parallelism "
                    f"(context_parallel = {self.context_parallel})"
                )
            if enable_caching and not group.spec.cacheable and group.spec.source == "decoder":
                raise CacheConfigError(
                    f"group {group.name!r}: a {group.spec.kind} group cannot be resumed from a prefix; "
                    "turn prefix caching off or use another spec"
                )
        if self.pools is not None:
            self._check_pools(self.pools)
        if enable_caching:
            self._check_hash_unit()
            self._check_retention(retention_interval)

    def _check_pools(self, pools: PoolConfig) -> None:
        kinds = len(self.lockstep())
        private = [group.name for group in self.groups if group.private_blocks]
        if private:
            raise CacheConfigError(f"group {private[0]!r}: private_blocks needs the shared pool, found pools")
        if (pools.num_kinds, pools.num_units) != (kinds, self.num_blocks):
            raise CacheConfigError(
                f"pools: {pools.num_kinds} kinds and {pools.num_units} {pools.unit}; the groups have {kinds} "
                f"specs, and num_blocks is {self.num_blocks}"
            )

    def _check_hash_unit(self) -> None:
        cacheable = [group for group in self.groups if group.spec.cacheable]
        if not cacheable:
            raise CacheConfigError("prefix caching needs a group that can be cached; turn it off for this model")
        unit, alone = self.hash_unit, len(self.groups) == 1
        for group in cacheable:
            size = self.block_size_of(group.spec)
            if size % unit or (alone and size != unit):
                raise CacheConfigError(
                    f"hash_block_size = {unit} must {'equal' if alone else 'divide'} the block size "
                    f"of group {group.name!r}, {size}"
                )

    def _check_retention(self, interval: int | None) -> None:
        common = self.scheduler_block_size
        if interval and interval > 0 and not any(group.spec.retained for group in self.groups):
            names = ", ".join(f"{group.name!r} ({group.spec.kind})" for group in self.groups)
            raise CacheConfigError(
                f"retention_interval = {interval}: it thins out what windows and states keep, and the groups "
                f"{names} keep every block; accepted: 0 or None"
            )
        if interval is not None and (interval < 0 or interval % common):
            raise CacheConfigError(
                f"retention_interval = {interval} must be 0 or a multiple of the common block size {common}"
            )
