"""A search that stops at the first landmark or window block that is missing, from above."""

from __future__ import annotations

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.managers.cached_prefix import CachedPrefix
from kvhybrid.managers.search import LiveSetSearch


class LandmarkSearch(LiveSetSearch):
    """The generic search asks all landmarks for their highest missing block; the first found from above is it."""

    def highest_missing(self, p: int) -> int:
        size, margin = self.block_size, self.margin
        above = [range(p // size, (p + margin - 1) // size + 1)] if margin else []
        for entries in (*above, *reversed(list(self.spec.live_blocks(p, size)))):
            missing = self.cached.last_missing(entries.start, entries.stop)
            if missing >= 0:
                return missing
        return -1


class LandmarkManager(SingleTypeKVCacheManager):
    """Groups of a landmark window."""

    def _search(self, path: IntArray, alignment: int, margin: int) -> LiveSetSearch:
        cached = CachedPrefix(self.pool, self.group_ids, path, self.units_per_block)
        return LandmarkSearch(self.spec, cached, self.block_size, alignment, margin)
