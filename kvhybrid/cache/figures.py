"""The figures of a cache at one moment, gathered from its pools and counters."""

from __future__ import annotations

from kvhybrid.cache.coordinators import KVCacheCoordinator
from kvhybrid.cache.counters import CacheCounters
from kvhybrid.cache.stats import CacheStats, GroupStats


def take_stats(coordinator: KVCacheCoordinator, counters: CacheCounters) -> CacheStats:
    """The figures of now, per group and for the shared pool."""
    groups: list[GroupStats] = []
    for g, group in enumerate(coordinator.config.groups):
        live, cached, reusable, evictions = coordinator.groups.pool_of_group(g).counts[:, g].tolist()
        groups.append(
            GroupStats(
                name=group.name,
                tokens_asked=counters.asked,
                tokens_hit=counters.hit,
                tokens_own_hit=counters.own[g],
                blocks_live=live,
                blocks_cached=cached,
                blocks_reusable=reusable,
                evictions=evictions,
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
