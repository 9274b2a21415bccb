"""What the cache manager returns: block ids per group, and prefix hits."""

from __future__ import annotations

from typing import Final, NamedTuple

from kvhybrid.cache.request import Request
from kvhybrid.cache.stats import MissCauses
from kvhybrid.managers.arrays import IntArray

# Plain classes, since every call makes some: even compiled, a dataclass is made by interpreted code.


class KVCacheBlocks:
    """Block ids, one array per group, as they were when the call returned; 0 is the null block."""

    def __init__(self, ids: tuple[IntArray, ...]) -> None:
        self.ids: Final = ids

    def get_block_ids(self) -> tuple[list[int], ...]:
        """The ids as lists, one per group."""
        return tuple(row.tolist() for row in self.ids)


class PrefixHit(KVCacheBlocks):
    """The longest prefix from which every group can resume, and the blocks that this needs. None is held yet."""

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
        """The longest prefix, with a real block, that a group accepted during the search; 0 if the hit is as long.
        In tokens."""
        self.own_tokens: Final = own_tokens
        """Per group, the longest hit that it alone could have given, in tokens."""
        self.cut_by: Final = cut_by
        """The group that limited the hit, if another could have given more."""
        self.by_manager: Final = by_manager
        """The same blocks by manager, shaped (groups, entries)."""
        self.cache: object = None
        """The cache manager that looked it up."""
        self.request: Request | None = None
        """The request that it was looked up for."""
        self.tokens_asked = 0
        """Tokens that the request had then."""
        self.causes: tuple[MissCauses, ...] | None = None
        """Per group, why tokens were not hit, if misses are tracked."""


class ComputedBlocks(NamedTuple):
    """A look-up's answer, to be passed on to ``allocate_slots``."""

    blocks: PrefixHit
    num_tokens: int
    junction: int
