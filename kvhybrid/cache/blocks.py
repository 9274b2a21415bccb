"""What the cache manager hands out: block ids per group, and prefix hits."""

from __future__ import annotations

from typing import Final, NamedTuple

from kvhybrid.cache.miss_causes import MissCauses
from kvhybrid.managers.arrays import IntArray

# Made in every call, so they are plain classes: compiled, a dataclass is still made by interpreted code.


class KVCacheBlocks:
    """Block ids, one array per group; 0 is the null block."""

    def __init__(self, ids: tuple[IntArray, ...]) -> None:
        self.ids: Final = ids

    def get_block_ids(self) -> tuple[list[int], ...]:
        return tuple(row.tolist() for row in self.ids)


class PrefixHit(KVCacheBlocks):
    """The longest prefix from which every group can resume. Nothing is held yet."""

    def __init__(
        self,
        ids: tuple[IntArray, ...],
        num_tokens: int,
        junction: int,
        own_tokens: tuple[int, ...],
        cut_by: int | None,
        by_manager: tuple[IntArray, ...] = (),
    ) -> None:
        super().__init__(ids)
        self.num_tokens: Final = num_tokens
        self.junction: Final = junction
        """The longest prefix that a group accepted on the way, with a real block in it; 0 where the hit is as
        long."""
        self.own_tokens: Final = own_tokens
        """Per group, the longest prefix that it alone could have given."""
        self.cut_by: Final = cut_by
        """The group that cut the hit below what the others could give, where one did."""
        self.by_manager: Final = by_manager
        """The same blocks, the rows of groups that go in lockstep stacked."""
        self.causes: tuple[MissCauses, ...] | None = None
        """Per group, where the tokens went that were not hit, when misses are tracked."""


class ComputedBlocks(NamedTuple):
    """A look-up's answer, to be handed to ``allocate_slots``."""

    blocks: PrefixHit
    num_tokens: int
    junction: int
