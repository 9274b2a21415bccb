"""Running sums over a cache manager's life."""

from __future__ import annotations

from kvhybrid.cache.blocks import PrefixHit
from kvhybrid.cache.coordinators.allocation import Refusal
from kvhybrid.cache.miss_causes import MissCauses


class CacheCounters:
    """Tokens asked for and hit at admissions, per group, and refusals by reason."""

    def __init__(self, num_groups: int) -> None:
        self.asked = 0
        self.hit = 0
        self.own = [0] * num_groups
        self.misses = [MissCauses()] * num_groups
        self.refusals = dict.fromkeys([reason.value for reason in Refusal], 0)

    def admitted(self, num_tokens: int, hit_tokens: int, hit: PrefixHit | None, causes: bool) -> None:
        """A request of ``num_tokens`` was admitted; ``hit`` is its look-up's answer, if there was one."""
        self.asked += num_tokens
        self.hit += hit_tokens
        for g in range(len(self.own)):
            self.own[g] += hit.own_tokens[g] if hit else hit_tokens
            if causes:
                known = hit.causes[g] if hit and hit.causes else None
                self.misses[g] += known or MissCauses(opted_out=num_tokens - hit_tokens)
                if hit and known and hit.num_tokens > hit_tokens:
                    self.misses[g] += MissCauses(no_room=hit.num_tokens - hit_tokens)
