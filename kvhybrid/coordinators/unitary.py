"""Prefix caching with one group."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from kvhybrid.blocks import PrefixHit
from kvhybrid.coordinators.base import KVCacheCoordinator
from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.request import Request


@mypyc_attr(allow_interpreted_subclasses=True)
class UnitaryKVCacheCoordinator(KVCacheCoordinator):
    """One group: its own longest hit is the hit."""

    def find_longest_cache_hit(self, request: Request, limit: int) -> PrefixHit:
        search = self.managers[0].search(self.numbers(request))
        p = search.at_most(limit)
        blocks = search.blocks(p)
        return PrefixHit((blocks[0],), p, 0, (p,), None, (blocks,))

    def keyed_tokens(self, manager: SingleTypeKVCacheManager, num_tokens: int) -> int:
        return num_tokens
