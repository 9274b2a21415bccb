"""Running sums over a cache manager's life."""

from __future__ import annotations

from kvhybrid.cache.blocks import KVCacheBlocks, PrefixHit
from kvhybrid.cache.miss_causes import MissCauses


class CacheCounters:
    """Tokens asked for and hit at admissions, per group, and refusals by reason."""

    def __init__(self, num_groups: int) -> None:
        self.asked = 0
        self.hit = 0
        self.own = [0] * num_groups
        self.misses = [MissCauses()] * num_groups
        self.refusals = dict.fromkeys(("no_blocks", "whole_request", "not_written_yet"), 0)

    def admitted(self, num_tokens: int, hit_tokens: int, hit: KVCacheBlocks | None, causes: bool) -> None:
        """A request of ``num_tokens`` was admitted; ``hit`` is its look-up's answer, if there was one."""
        self.asked += num_tokens
        self.hit += hit_tokens
        looked_up = hit if isinstance(hit, PrefixHit) else None
        for g in range(len(self.own)):
            self.own[g] += looked_up.own_tokens[g] if looked_up else hit_tokens
            if causes:
                known = looked_up.causes[g] if looked_up and looked_up.causes else None
                self.misses[g] += known or MissCauses(opted_out=num_tokens - hit_tokens)
                if looked_up and known and looked_up.num_tokens > hit_tokens:
                    self.misses[g] += MissCauses(no_room=looked_up.num_tokens - hit_tokens)
