"""Coordinators: carry out each call of the cache manager for all groups that share the pool."""

from __future__ import annotations

from kvhybrid.cache.config import KVCacheConfig
from kvhybrid.cache.coordinators.base import KVCacheCoordinator
from kvhybrid.cache.coordinators.hybrid import HybridKVCacheCoordinator
from kvhybrid.cache.coordinators.no_prefix_cache import KVCacheCoordinatorNoPrefixCache
from kvhybrid.cache.coordinators.unitary import UnitaryKVCacheCoordinator
from kvhybrid.plugins import Choice


def get_kv_cache_coordinator(
    config: KVCacheConfig,
    *,
    enable_caching: bool,
    max_model_len: int,
    max_in_flight_tokens: int,
    retention_interval: int | None,
    retention: Choice,
    eviction: Choice,
) -> KVCacheCoordinator:
    """The coordinator for ``config``: without prefix caching, for one group, or for several."""
    config.check(enable_caching, retention_interval)
    kind: type[KVCacheCoordinator] = HybridKVCacheCoordinator
    if not enable_caching:
        kind = KVCacheCoordinatorNoPrefixCache
    elif len(config.groups) == 1:
        kind = UnitaryKVCacheCoordinator
    return kind(
        config,
        max_model_len=max_model_len,
        max_in_flight_tokens=max_in_flight_tokens,
        retention_interval=retention_interval,
        retention=retention,
        eviction=eviction,
    )


__all__ = [
    "HybridKVCacheCoordinator",
    "KVCacheCoordinator",
    "KVCacheCoordinatorNoPrefixCache",
    "UnitaryKVCacheCoordinator",
    "get_kv_cache_coordinator",
]
