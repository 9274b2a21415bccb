"""Specs whose live set is one range that ends at the token: what dies is always the lowest part."""

from __future__ import annotations

from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.managers.table import BlockTable
from kvhybrid.specs import SuffixSpec


class SuffixManager(SingleTypeKVCacheManager):
    """Groups of a `SuffixSpec`."""

    spec: SuffixSpec

    def dead(self, table: BlockTable, num_tokens: int) -> list[tuple[int, int]]:
        end = min(self.spec.first(num_tokens) // self.block_size, table.length)
        start, table.dropped = table.dropped, max(table.dropped, end)
        return [(start, end)] if start < end else []
