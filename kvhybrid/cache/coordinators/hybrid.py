"""Prefix caching with several groups: the joint hit."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from kvhybrid.cache.blocks import PrefixHit
from kvhybrid.cache.coordinators.base import KVCacheCoordinator
from kvhybrid.cache.request import Request
from kvhybrid.managers.arrays import IntArray, read_only
from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.managers.search import LiveSetSearch


@mypyc_attr(allow_interpreted_subclasses=True)
class HybridKVCacheCoordinator(KVCacheCoordinator):
    """Several groups: a hit is a length from which all of them can resume."""

    def _sub_block_hits(self) -> bool:
        """Whether hits may end inside a block.

        That is so if some state's block has more tokens than a prefix key (or, under context parallelism, equally
        many), and every other group either allows it or has blocks of one key.
        """
        unit, config = self.config.hash_unit, self.config
        cacheable = [group.spec for group in config.groups if group.spec.cacheable]
        finer = any(
            spec.state and (spec.block_size > unit or (config.context_parallel > 1 and spec.block_size == unit))
            for spec in cacheable
        )
        return finer and all(spec.sub_block or config.block_size_of(spec) == unit for spec in cacheable)

    def find_longest_cache_hit(self, request: Request, limit: int) -> PrefixHit:
        """The greatest common fixed point: each group in turn cuts the candidate to what it accepts, until none
        does. Candidates only move down, so the order of the groups does not change the answer."""
        numbers = self.numbers(request)
        order = self.search_order
        searches = {c: self.managers[c].search(numbers) for c in order}
        own = {c: search.at_most(limit) for c, search in searches.items()}
        asks = [(c, searches[c].at_most) for c in order]
        p, reach, cut_by, waiting = limit, 0, -1, len(order)
        while waiting and p:
            for c, at_most in asks:
                found = at_most(p)
                if found > reach and searches[c].reads_any(found):
                    reach = found
                if found < p:
                    p, cut_by, waiting = found, c, len(order)
                waiting -= 1
                if not waiting or not p:
                    break
        by_manager = self._hit_blocks(searches, p)
        return PrefixHit(
            ids=tuple([by_manager[c][i] for c, i in self.place]) if p else self.no_hit.ids,
            num_tokens=p,
            junction=reach if reach > p else 0,
            own_tokens=tuple(own.get(c, 0) for c, _ in self.place),
            cut_by=self.managers[cut_by].groups[0] if cut_by >= 0 and p < max(own.values()) else None,
            by_manager=by_manager,
        )

    def _hit_blocks(self, searches: dict[int, LiveSetSearch], p: int) -> tuple[IntArray, ...]:
        nothing = self.no_hit.by_manager
        if not p:
            return nothing
        found = {c: read_only(search.blocks(p)) for c, search in searches.items()}
        return tuple([found.get(c, none) for c, none in enumerate(nothing)])

    def keyed_tokens(self, manager: SingleTypeKVCacheManager, num_tokens: int) -> int:
        """Only up to a length at which a hit can end, and the margin above it that a draft model needs."""
        if self.sub_block_hits:
            return num_tokens
        aligned = num_tokens - num_tokens % self.alignment
        return min(num_tokens, aligned + manager.margin) if aligned else 0
