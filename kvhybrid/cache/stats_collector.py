"""Collects the stats of a cache."""

from __future__ import annotations

from kvhybrid.cache.blocks import PrefixHit
from kvhybrid.cache.coordinators import KVCacheCoordinator
from kvhybrid.cache.coordinators.allocation import Refusal
from kvhybrid.cache.stats import CacheStats, GroupStats, MissCauses


class StatsCollector:
    """Sums up tokens, by group, and refusals, by reason; block counts are read from the pools when asked for."""

    def __init__(self, coordinator: KVCacheCoordinator) -> None:
        self._coordinator = coordinator
        num_groups = len(coordinator.config.groups)
        self._tokens_asked = 0
        self._tokens_hit = 0
        self._tokens_own_hit = [0] * num_groups
        self._misses = [MissCauses()] * num_groups
        self._refusals = dict.fromkeys([reason.value for reason in Refusal], 0)

    def admitted(self, num_tokens: int, hit_tokens: int, hit: PrefixHit | None) -> None:
        """A request of ``num_tokens`` was admitted; of ``hit``, its look-up's, it adopted ``hit_tokens``."""
        self._tokens_asked += num_tokens
        self._tokens_hit += hit_tokens
        causes = self._coordinator.ledger is not None
        for g in range(len(self._tokens_own_hit)):
            self._tokens_own_hit[g] += hit.own_tokens[g] if hit else hit_tokens
            if causes:
                known = hit.causes[g] if hit and hit.causes else None
                self._misses[g] += known or MissCauses(opted_out=num_tokens - hit_tokens)
                if hit and known and hit.num_tokens > hit_tokens:
                    self._misses[g] += MissCauses(no_room=hit.num_tokens - hit_tokens)

    def refused(self, reason: Refusal) -> None:
        """A request got no slots."""
        self._refusals[reason.value] += 1

    def stats(self) -> CacheStats:
        """The stats at this moment, per group and for the shared pool."""
        coordinator = self._coordinator
        groups: list[GroupStats] = []
        for g, group in enumerate(coordinator.config.groups):
            live, cached, reusable, evictions = coordinator.groups.pool_of_group(g).counts[:, g].tolist()
            groups.append(
                GroupStats(
                    name=group.name,
                    tokens_asked=self._tokens_asked,
                    tokens_hit=self._tokens_hit,
                    tokens_own_hit=self._tokens_own_hit[g],
                    blocks_live=live,
                    blocks_cached=cached,
                    blocks_reusable=reusable,
                    evictions=evictions,
                    misses=self._misses[g] if coordinator.ledger else None,
                )
            )
        pool = coordinator.pool
        return CacheStats(
            groups=tuple(groups),
            num_blocks=pool.num_blocks - 1,
            blocks_free=pool.num_free,
            usage=pool.usage,
            refusals=sum(self._refusals.values()),
            refusals_by_reason=dict(self._refusals),
        )
