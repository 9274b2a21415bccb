"""Cache events: what became reusable and what is gone, for routers and offloaders outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from kvhybrid.cache_config import KVCacheConfig
from kvhybrid.hashing import ROOT, PrefixHasher
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


@dataclass(frozen=True)
class BlockStored:
    """Keys of one group came to be: the first block of each was keyed."""

    group: int
    blocks: tuple[StoredBlock, ...]


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

    def __init__(self, config: KVCacheConfig, index: PrefixIndex, hasher: PrefixHasher) -> None:
        self._config = config
        self._index = index
        self._hasher = hasher
        self._events: list[CacheEvent] = []
        self.request: Request | None = None
        """Whose blocks are being keyed: the source of parents and extra keys."""

    def take(self) -> list[CacheEvent]:
        """The events since the last call, in the order in which they happened."""
        events, self._events = self._events, []
        return events

    def stored(self, group: int, numbers: IntArray) -> None:
        blocks = tuple(self._stored_block(group, number) for number in numbers.tolist())
        self._events.append(BlockStored(group, blocks))

    def _stored_block(self, group: int, number: int) -> StoredBlock:
        unit, size = self._config.hash_unit, self._config.block_sizes[group]
        end = self._index.units(number) * unit
        start = (end - 1) // size * size
        keys, extra = (self.request.block_hashes, self._extra) if self.request else ([], None)
        parent = keys[start // unit - 1] if start and keys else ROOT
        units = range(start // unit, end // unit)
        return StoredBlock(
            self._index.key(number), parent, start, end, tuple(extra(u) for u in units) if extra else ()
        )

    def _extra(self, unit: int) -> bytes:
        assert self.request is not None
        return self._hasher.extra_keys(self.request, unit)

    def removed(self, groups: IntArray, numbers: IntArray) -> None:
        for group in np.unique(groups).tolist():
            keys = tuple(self._index.key(n) for n in numbers[groups == group].tolist())
            self._events.append(BlockRemoved(group, keys))

    def cleared(self, groups: IntArray, numbers: IntArray) -> None:
        if not self._events or not isinstance(self._events[-1], AllBlocksCleared):
            self._events.append(AllBlocksCleared())
