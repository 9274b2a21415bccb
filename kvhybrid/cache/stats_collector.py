"""Collects the stats of a cache."""

from __future__ import annotations

from kvhybrid.cache.blocks import PrefixHit
from kvhybrid.cache.coordinators import KVCacheCoordinator
from kvhybrid.cache.coordinators.allocation import Refusal
from kvhybrid.cache.request import Request
from kvhybrid.cache.stats import CacheStats, GroupStats, LookupStats, MissCauses


class LookupSums:
    """Sums over look-ups whose requests were admitted."""

    def __init__(self, num_groups: int) -> None:
        self.tokens_asked = self.tokens_hit = 0
        self.tokens_own_hit = [0] * num_groups
        self.misses = [MissCauses()] * num_groups

    def add(self, num_tokens: int, hit_tokens: int, hit: PrefixHit | None, causes: bool) -> None:
        """Add an admission: a request of ``num_tokens`` found ``hit`` and adopted ``hit_tokens`` of it."""
        self.tokens_asked += num_tokens
        self.tokens_hit += hit_tokens
        known = hit.causes if hit else None
        given_up = hit.num_tokens - hit_tokens if hit else 0
        unasked = num_tokens - (hit.tokens_asked if hit and known else hit_tokens + given_up)
        for g in range(len(self.tokens_own_hit)):
            self.tokens_own_hit[g] += hit.own_tokens[g] if hit else hit_tokens
            if causes:
                if known:
                    self.misses[g] += known[g]
                if given_up or unasked:
                    self.misses[g] += MissCauses(no_room=given_up, opted_out=unasked)

    def of_group(self, g: int, causes: bool) -> LookupStats:
        return LookupStats(
            tokens_asked=self.tokens_asked,
            tokens_hit=self.tokens_hit,
            tokens_own_hit=self.tokens_own_hit[g],
            misses=self.misses[g] if causes else None,
        )


class StatsCollector:
    """Sums up look-ups, by group, and refusals, by reason; block counts are read from the pools when asked for."""

    def __init__(self, coordinator: KVCacheCoordinator) -> None:
        self._coordinator = coordinator
        self._first = LookupSums(len(coordinator.config.groups))
        self._readmitted = LookupSums(len(coordinator.config.groups))
        self._refusals = dict.fromkeys([reason.value for reason in Refusal], 0)

    def admitted(self, request: Request, hit_tokens: int, hit: PrefixHit | None) -> None:
        """``request``, whose look-up found ``hit``, was admitted and adopted ``hit_tokens`` of it.

        After a preemption it finds its own blocks, which says nothing about sharing between requests.
        """
        sums = self._readmitted if request.num_preemptions else self._first
        sums.add(request.num_tokens, hit_tokens, hit, self._coordinator.ledger is not None)

    def refused(self, reason: Refusal) -> None:
        """A request got no slots."""
        self._refusals[reason.value] += 1

    def stats(self) -> CacheStats:
        """The current stats, per group and for the shared pool."""
        coordinator, causes = self._coordinator, self._coordinator.ledger is not None
        unused = coordinator.groups.unused()
        groups: list[GroupStats] = []
        for g, group in enumerate(coordinator.config.groups):
            live, cached, reusable, evictions = coordinator.groups.pool_of_group(g).counts[:, g].tolist()
            groups.append(
                GroupStats(
                    name=group.name,
                    **vars(self._first.of_group(g, causes)),
                    readmitted=self._readmitted.of_group(g, causes),
                    blocks_live=live,
                    blocks_cached=cached,
                    blocks_reusable=reusable,
                    evictions=evictions,
                    blocks_unused=unused[coordinator.groups.pool_of[coordinator.place[g][0]]],
                )
            )
        return CacheStats(
            groups=tuple(groups),
            num_blocks=coordinator.config.num_usable,
            blocks_free=coordinator.groups.num_free,
            usage=coordinator.groups.usage,
            refusals=sum(self._refusals.values()),
            refusals_by_reason=dict(self._refusals),
        )
