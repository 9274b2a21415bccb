"""Oracles that try everything: slow, and too simple to be wrong. They ask the specs and the pool, no manager."""

from __future__ import annotations

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request
from kvhybrid.specs import KVCacheSpec


def longest_hit(manager: KVCacheManager, request: Request, limit: int) -> int:
    """The longest aligned p of at most ``limit`` tokens from which every group can resume: all are tried."""
    config = manager.config
    cacheable = [g for g, group in enumerate(config.groups) if group.spec.cacheable]
    flagged = {group.spec for group in config.groups if group.draft}
    alignment = config.scheduler_block_size
    for p in range(limit // alignment * alignment, 0, -alignment):
        if all(can_resume(manager, request, g, p, config.groups[g].spec in flagged) for g in cacheable):
            return p
    return 0


def can_resume(manager: KVCacheManager, request: Request, g: int, p: int, draft: bool) -> bool:
    """Whether group ``g`` has a block for every token that is read at ``p``, and for the margin of a draft."""
    spec, size = manager.config.groups[g].spec, manager.config.block_sizes[g]
    wanted = tokens_read(spec, p)
    if draft:
        wanted |= set(range(p, p + size))
    return all(holds(manager, request, g, j) for j in {token // size for token in wanted})


def tokens_read(spec: KVCacheSpec, p: int) -> set[int]:
    return {token for part in spec.live(p) for token in part}


def holds(manager: KVCacheManager, request: Request, g: int, j: int) -> bool:
    """Whether some block of group ``g`` is keyed under the first ``j + 1`` blocks of ``request``."""
    units = (j + 1) * manager.config.block_sizes[g] // manager.config.hash_unit
    numbers = manager.coordinator.numbers(request)
    return units <= len(numbers) and bool(manager.block_pool.keys.index[g, numbers[units - 1]])


def most_held(spec: KVCacheSpec, in_flight: int, max_len: int) -> int:
    """The most blocks that any step of at most ``in_flight`` tokens touches: all steps are tried."""
    size, most = spec.block_size, 0
    for n in range(max_len):
        for m in range(n + 1, min(n + in_flight, max_len) + 1):
            written = {m - 1} if spec.state else set(range(n, m))
            most = max(most, len({token // size for token in tokens_read(spec, n) | written}))
    return most
