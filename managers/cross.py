"""Cross attention: the encoder's tokens, taken once and never shared."""

from __future__ import annotations

import sys

import numpy as np

from kvhybrid.managers.arrays import EMPTY
from kvhybrid.managers.base import Growth, SingleTypeKVCacheManager
from kvhybrid.managers.table import BlockTable


class CrossAttentionManager(SingleTypeKVCacheManager):
    """Groups whose token counts are the encoder's: the coordinator passes those for every count."""

    def growth(self, table: BlockTable, adopted: int, total: int, main: int, slots: int, loads: bool) -> Growth:
        end = max(table.length, -(-slots // self.block_size))
        return Growth(EMPTY, table.length, np.arange(table.length, end, dtype=np.int32), end, 0)

    def dead(self, table: BlockTable, num_tokens: int) -> list[tuple[int, int]]:
        return []

    def quiet_until(self, table: BlockTable, keyed: int, main: int) -> int:
        return sys.maxsize
