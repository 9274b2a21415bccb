"""Prefix caching off."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from kvhybrid.cache.blocks import PrefixHit
from kvhybrid.cache.coordinators.base import KVCacheCoordinator
from kvhybrid.cache.coordinators.request_tables import RequestTables
from kvhybrid.cache.request import Request


@mypyc_attr(allow_interpreted_subclasses=True)
class KVCacheCoordinatorNoPrefixCache(KVCacheCoordinator):
    """Prefix caching off: nothing is keyed and nothing is hit."""

    def find_longest_cache_hit(self, request: Request, limit: int) -> PrefixHit:
        return self.no_hit

    def _key(self, held: RequestTables, request: Request, num_tokens: int) -> None:
        pass
