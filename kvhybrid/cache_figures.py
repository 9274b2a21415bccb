"""The figures of a cache at one moment, gathered from its pools, tables and counters."""

from __future__ import annotations

import numpy as np

from kvhybrid.coordinators import KVCacheCoordinator
from kvhybrid.counters import CacheCounters
from kvhybrid.stats import CacheStats, GroupStats


def take_stats(coordinator: KVCacheCoordinator, counters: CacheCounters) -> CacheStats:
    """The figures of now, per group and for the shared pool."""
    counts = [pool.count_by_group() for pool in coordinator.pools]
    groups: list[GroupStats] = []
    for g, (c, i) in enumerate(coordinator.place):
        cached, reusable = counts[coordinator.pool_of[c]]
        groups.append(
            GroupStats(
                name=coordinator.config.groups[g].name,
                tokens_asked=counters.asked,
                tokens_hit=counters.hit,
                tokens_own_hit=counters.own[g],
                blocks_live=_live_blocks(coordinator, c, i),
                blocks_cached=int(cached[g]),
                blocks_reusable=int(reusable[g]),
                evictions=int(coordinator.pool_of_group(g).evictions[g]),
                misses=counters.misses[g] if coordinator.ledger else None,
            )
        )
    pool = coordinator.pool
    return CacheStats(
        groups=tuple(groups),
        num_blocks=pool.num_blocks - 1,
        blocks_free=pool.num_free,
        usage=pool.usage,
        refusals=sum(counters.refusals.values()),
        refusals_by_reason=dict(counters.refusals),
    )


def _live_blocks(coordinator: KVCacheCoordinator, c: int, i: int) -> int:
    """The distinct blocks that are held in one group."""
    rows = [held.tables[c].row(i) for held in coordinator.holders()]
    return int((np.unique(np.concatenate(rows)) > 0).sum()) if rows else 0
