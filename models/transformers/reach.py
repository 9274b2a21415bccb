"""The tokens of one sequence in one cache group: where new ones are written, and which are read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvhybrid.models.base import GroupBatch


@dataclass(frozen=True)
class Reach:
    """Slots in the pages of a group for the new tokens of one sequence, and for all that they read."""

    first: int
    """The lowest position that is read."""
    end: int
    """The number of tokens of the sequence, new ones included."""
    block_size: int
    blocks_T: Tensor
    offsets_T: Tensor
    """Block and offset of each new token."""
    blocks_N: Tensor
    """The blocks that hold the positions from `first` to `end`."""

    @classmethod
    def of(cls, group: GroupBatch, sequence: int, rows: slice, first: int, end: int) -> Reach:
        """``rows`` are those of the sequence's new tokens in the batch."""
        size = group.block_size
        slots_T = group.slot_mapping_T[rows]
        return cls(
            first,
            end,
            size,
            slots_T // size,
            slots_T % size,
            group.block_table_SN[sequence, first // size : (end - 1) // size + 1],
        )

    def write(self, pages: Tensor, new_THD: Tensor) -> None:
        """Store the new tokens. ``pages`` is ``[P, B, H, D]``."""
        pages[self.blocks_T, self.offsets_T] = new_THD.to(pages.dtype)

    def read(self, pages: Tensor) -> Tensor:
        """The tokens from `first` to `end`, ``[L, H, D]``, as a copy."""
        start = self.first % self.block_size
        gathered = torch.index_select(pages, 0, self.blocks_N)
        return gathered.flatten(0, 1)[start : start + self.end - self.first]
