"""Cache events: which keys were added and dropped, for routers and offloaders outside of the process."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from kvhybrid.cache.hashing import ROOT
from kvhybrid.cache.request import Request
from kvhybrid.managers.arrays import IntArray


@dataclass(frozen=True)
class StoredBlock:
    """One key: its prefix ends at token ``end`` of its request."""

    key: bytes
    parent_key: bytes
    """The key of the prefix that ends where this block starts, `ROOT` for the first."""
    start: int
    end: int
    extra_keys: tuple[bytes, ...]
    """Per prefix unit inside the block, what its key includes in addition to tokens."""


@dataclass(frozen=True, eq=False)
class BlockStored:
    """Keys of one group were added: the first block of each was keyed."""

    group: int
    keys: tuple[bytes, ...]
    units: IntArray
    """How many prefix units the prefix of each key has."""
    block_size: int
    unit: int
    request: Request | None = field(repr=False)
    """The request whose prefixes they are."""

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Where the prefix of each key ends, in tokens."""
        return tuple((self.units * self.unit).tolist())

    @cached_property
    def blocks(self) -> tuple[StoredBlock, ...]:
        """The keys with their parents and extra keys. Computed on first use: most listeners need only the keys."""
        return tuple(self._block(key, end) for key, end in zip(self.keys, self.ends, strict=True))

    def _block(self, key: bytes, end: int) -> StoredBlock:
        unit, request = self.unit, self.request
        start = (end - 1) // self.block_size * self.block_size
        if request is None:
            return StoredBlock(key, ROOT, start, end, ())
        parent = request.block_hashes[start // unit - 1] if start else ROOT
        extra = tuple(request.extra_keys.of_unit(i, unit) for i in range(start // unit, end // unit))
        return StoredBlock(key, parent, start, end, extra)


@dataclass(frozen=True)
class BlockRemoved:
    """Keys of one group were dropped: the last block of each has lost it."""

    group: int
    keys: tuple[bytes, ...]


@dataclass(frozen=True)
class AllBlocksCleared:
    """Every key of every group was dropped."""


CacheEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared
