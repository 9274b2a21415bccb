"""Cache events: what became reusable and what is gone, for routers and offloaders outside."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np

from kvhybrid.cache_config import KVCacheConfig
from kvhybrid.hashing import ROOT, extra_keys
from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.observer import PoolObserver
from kvhybrid.managers.prefix_index import PrefixIndex
from kvhybrid.request import Request


@dataclass(frozen=True)
class StoredBlock:
    """One key: the prefix that it stands for ends at token ``end`` of its request."""

    key: bytes
    parent_key: bytes
    """The key of the prefix that ends where this block starts."""
    start: int
    end: int
    extra_keys: tuple[bytes, ...]
    """Per prefix unit inside the block, what besides tokens entered its key."""


@dataclass(frozen=True, eq=False)
class BlockStored:
    """Keys of one group came to be: the first block of each was keyed."""

    group: int
    keys: tuple[bytes, ...]
    ends: tuple[int, ...]
    """Where the prefix of each key ends, in tokens."""
    block_size: int
    unit: int
    request: Request | None = field(repr=False)
    """Whose prefixes they are."""

    @cached_property
    def blocks(self) -> tuple[StoredBlock, ...]:
        """The keys with their parents and extra keys. Made when asked for: most listeners need the keys alone."""
        return tuple(self._block(key, end) for key, end in zip(self.keys, self.ends, strict=True))

    def _block(self, key: bytes, end: int) -> StoredBlock:
        unit, request = self.unit, self.request
        start = (end - 1) // self.block_size * self.block_size
        if request is None:
            return StoredBlock(key, ROOT, start, end, ())
        parent = request.block_hashes[start // unit - 1] if start else ROOT
        extra = tuple(extra_keys(request, i, unit) for i in range(start // unit, end // unit))
        return StoredBlock(key, parent, start, end, extra)


@dataclass(frozen=True)
class BlockRemoved:
    """Keys of one group are gone: the last block of each lost them."""

    group: int
    keys: tuple[bytes, ...]


@dataclass(frozen=True)
class AllBlocksCleared:
    """Every key of every group is gone."""


CacheEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


class EventLog(PoolObserver):
    """Collects the events of one pool until they are taken.

    Replaying them over an empty set per group (add what is stored, discard what is removed) gives the keys that
    are cached, at every moment.
    """

    def __init__(self, config: KVCacheConfig, index: PrefixIndex) -> None:
        self._config = config
        self._index = index
        self._events: list[CacheEvent] = []
        self.request: Request | None = None
        """Whose blocks are being keyed: the source of parents and extra keys."""

    def take(self) -> list[CacheEvent]:
        """The events since the last call, in the order in which they happened."""
        events, self._events = self._events, []
        return events

    def stored(self, groups: IntArray, numbers: IntArray) -> None:
        unit, sizes = self._config.hash_unit, self._config.block_sizes
        keys, units = tuple(self._index.keys_of(numbers)), self._index.units_of(numbers)
        ends = tuple((units * unit).tolist())
        for group in groups.tolist():
            self._events.append(BlockStored(group, keys, ends, sizes[group], unit, self.request))

    def removed(self, groups: IntArray, numbers: IntArray) -> None:
        for group in np.flatnonzero(np.bincount(groups)).tolist():
            keys = self._index.keys_of(numbers[groups == group])
            self._events.append(BlockRemoved(group, tuple(keys)))

    def cleared(self, groups: IntArray, numbers: IntArray) -> None:
        if not self._events or not isinstance(self._events[-1], AllBlocksCleared):
            self._events.append(AllBlocksCleared())
