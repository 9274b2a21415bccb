"""Prefix caching with one group."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from kvhybrid.cache.blocks import PrefixHit
from kvhybrid.cache.coordinators.base import KVCacheCoordinator
from kvhybrid.cache.request import Request
from kvhybrid.managers.arrays import read_only
from kvhybrid.managers.base import SingleTypeKVCacheManager


@mypyc_attr(allow_interpreted_subclasses=True)
class UnitaryKVCacheCoordinator(KVCacheCoordinator):
    """One group: its own longest hit is the hit."""

    def find_longest_cache_hit(self, request: Request, limit: int) -> PrefixHit:
        search = self.managers[0].search(self.numbers(request))
        p = search.at_most(limit)
        if not p:
            return PrefixHit(self.no_hit.ids, 0, 0, self.no_hit.own_tokens, None, self.no_hit.by_manager)
        blocks = read_only(search.blocks(p))
        return PrefixHit((blocks[0],), p, 0, (p,), None, (blocks,))

    def keyed_tokens(self, manager: SingleTypeKVCacheManager, num_tokens: int) -> int:
        return num_tokens
