"""What a single-type manager must know about its groups."""

from __future__ import annotations

from dataclasses import dataclass

from kvhybrid.managers.retention.base import Retention


@dataclass(frozen=True)
class GroupRules:
    """What a manager must know about its groups and the cache that they are part of."""

    groups: tuple[int, ...]
    """Indices of the groups, all of one spec."""
    block_size: int
    """Tokens that a block covers over all ranks."""
    hash_unit: int
    """Tokens per prefix number."""
    alignment: int
    """Hits end on multiples of this many tokens."""
    sub_block_hits: bool
    """Hits may end inside a block; ``alignment`` is then the hash unit."""
    drops: bool
    """A draft model recomputes the last unit of a hit in these groups, so one more unit must be cached."""
    retention: Retention
