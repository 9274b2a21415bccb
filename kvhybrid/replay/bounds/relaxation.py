"""An upper bound for caches of several groups: MIN with windows and states free.

A hit of p tokens needs, in every group that reads the whole prefix, the blocks of all p tokens. What windows and
states need is left out, which can only raise the optimum. What remains needs sum(unit / block size) blocks per
unit of p, the sum over those groups, so an optimal cache of floor(blocks / that sum) units hits at least as much
as any policy. For a single group of that kind, nothing is left out, and the bound is exact.
"""

from __future__ import annotations

from fractions import Fraction

from kvhybrid.cache.config import KVCacheConfig


def capacity_in_units(config: KVCacheConfig, unit: int) -> int | None:
    """The most units of ``unit`` tokens that the prefix groups of the shared pool can hold.

    None if no group needs whole prefixes: then the bound is that of an unlimited cache.
    """
    share = sum(
        (
            Fraction(unit, config.block_size_of(group.spec))
            for group in config.groups
            if group.spec.prefix and group.spec.cacheable and group.private_blocks is None
        ),
        Fraction(0),
    )
    return int((config.num_blocks - 1) / share) if share else None


def is_exact(config: KVCacheConfig) -> bool:
    """Whether MIN is the optimum itself: the shared pool has one group, which needs whole prefixes."""
    return len(config.groups) == 1 and config.groups[0].spec.prefix and config.groups[0].private_blocks is None
