"""Cross attention: blocks of the encoder's tokens, allocated once and never shared."""

from __future__ import annotations

import sys

from mypy_extensions import mypyc_attr

from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.managers.growth import NO_ENTRIES, Growth
from kvhybrid.managers.table import BlockTable


@mypyc_attr(allow_interpreted_subclasses=True)
class CrossAttentionManager(SingleTypeKVCacheManager):
    """Groups of encoder tokens: the coordinator passes the number of those for every token count."""

    def has_room(self, table: BlockTable, slots: int) -> bool:
        return True

    def can_go_back(self, table: BlockTable, tokens_before: int, tokens_after: int) -> bool:
        return True

    def growth(
        self, table: BlockTable, adopted: int, tokens_before: int, tokens_after: int, slots: int, loads: bool
    ) -> Growth:
        end = max(table.length, -(-slots // self.block_size))
        return Growth(NO_ENTRIES, table.length, range(table.length, end), end, 0)

    def dead(self, table: BlockTable, num_tokens: int) -> list[tuple[int, int]]:
        return []

    def no_work_until(self, table: BlockTable, keyed: int, tokens_after: int) -> int:
        return sys.maxsize
