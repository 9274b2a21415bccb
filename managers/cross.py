"""Cross attention: the encoder's tokens, taken once and never shared."""

from __future__ import annotations

import sys

from mypy_extensions import mypyc_attr

from kvhybrid.managers.base import NO_ENTRIES, Growth, SingleTypeKVCacheManager
from kvhybrid.managers.table import BlockTable


@mypyc_attr(allow_interpreted_subclasses=True)
class CrossAttentionManager(SingleTypeKVCacheManager):
    """Groups whose token counts are the encoder's: the coordinator passes those for every count."""

    def has_room(self, table: BlockTable, slots: int) -> bool:
        return True

    def growth(self, table: BlockTable, adopted: int, total: int, main: int, slots: int, loads: bool) -> Growth:
        end = max(table.length, -(-slots // self.block_size))
        return Growth(NO_ENTRIES, table.length, range(table.length, end), end, 0)

    def dead(self, table: BlockTable, num_tokens: int) -> list[tuple[int, int]]:
        return []

    def quiet_until(self, table: BlockTable, keyed: int, main: int) -> int:
        return sys.maxsize
