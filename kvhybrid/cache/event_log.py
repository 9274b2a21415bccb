"""The log of cache events."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from kvhybrid.cache.config import KVCacheConfig
from kvhybrid.cache.events import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent
from kvhybrid.cache.request import Request
from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.pool.observer import PoolObserver
from kvhybrid.managers.prefix.index import PrefixIndex


class EventLog(PoolObserver):
    """Collects the events of a cache's pools, in the order in which they happen, until they are taken.

    Replaying them over an empty set per group (add stored keys, discard removed ones) gives the keys that are
    cached at any moment.
    """

    def __init__(self, config: KVCacheConfig, index: PrefixIndex) -> None:
        self._unit, self._block_sizes = config.hash_unit, config.block_sizes
        self._index = index
        self._events: list[CacheEvent] = []
        self.request: Request | None = None
        """The request whose blocks are being keyed: events take parents and extra keys from it."""

    def take(self) -> list[CacheEvent]:
        """The events since the last call, in the order in which they happened."""
        events, self._events = self._events, []
        return events

    def stored(self, groups: IntArray, numbers: IntArray) -> None:
        keys, units = tuple(self._index.keys_of(numbers)), self._index.units_of(numbers)
        for group in groups.tolist():
            size = self._block_sizes[group]
            self._events.append(BlockStored(group, keys, units, size, self._unit, self.request))

    def removed(self, groups: IntArray, numbers: IntArray) -> None:
        if (groups != groups[0]).any():
            order = groups.argsort(kind="stable")
            groups, numbers = groups[order], numbers[order]
        cuts = [0, *(np.flatnonzero(groups[1:] != groups[:-1]) + 1).tolist(), len(groups)]
        for start, end in pairwise(cuts):
            keys = self._index.keys_of(numbers[start:end])
            self._events.append(BlockRemoved(int(groups[start]), tuple(keys)))

    def cleared(self, groups: IntArray, numbers: IntArray) -> None:
        if not self._events or not isinstance(self._events[-1], AllBlocksCleared):
            self._events.append(AllBlocksCleared())
