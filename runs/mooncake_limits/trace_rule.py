"""Caches under the trace rule: every id is a block, and the capacity is restored after each request.

A hit is the longest prefix of ids that are held. It is measured first. Then the ids of the request are touched,
the last one first, and blocks are evicted until the capacity holds. S3-FIFO evicts within that walk, as
blocks come in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, deque
from collections.abc import Container, Iterable
from heapq import heappop, heappush
from itertools import takewhile

from kvhybrid.replay.trace import TraceRequest

ID_TOKENS = 512


class Cache(ABC):
    """``capacity`` blocks, by their ids."""

    held: Container[int]

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    @abstractmethod
    def touch(self, ids: Iterable[int]) -> None:
        """Use ``ids`` in this order, and evict."""


class Lru(Cache):
    """Least recently used."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.held: OrderedDict[int, None] = OrderedDict()

    def touch(self, ids: Iterable[int]) -> None:
        for block in ids:
            self.held[block] = None
            self.held.move_to_end(block)
        while len(self.held) > self.capacity:
            self.held.popitem(last=False)


class Lfu(Cache):
    """Least frequently used, the least recent of them first. An evicted block is forgotten with its count."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.held: dict[int, tuple[int, int]] = {}
        """By block: uses, and time of the last one."""
        self._order: list[tuple[int, int, int]] = []
        """A heap, with outdated entries."""
        self._time = 0

    def touch(self, ids: Iterable[int]) -> None:
        for block in ids:
            self._time += 1
            entry = self.held.get(block, (0, 0))[0] + 1, self._time
            self.held[block] = entry
            heappush(self._order, (*entry, block))
        while len(self.held) > self.capacity:
            uses, time, block = heappop(self._order)
            if self.held.get(block) == (uses, time):
                del self.held[block]


class S3Fifo(Cache):
    """A small queue of 10 % for new blocks, a main queue, and a ghost queue of 90 % of evicted ids.

    A block moves from the small to the main queue if it was used twice or more since it came. Source: Yang et al.,
    "FIFO queues are all you need for cache eviction", SOSP 2023.
    """

    MOST_USES = 3
    MOVED_AT = 2

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.held: Counter[int] = Counter()
        """By block: uses since it came or since it was passed over."""
        self._small: deque[int] = deque()
        self._main: deque[int] = deque()
        self._ghosts: OrderedDict[int, None] = OrderedDict()
        self._small_size = max(1, capacity // 10)

    def touch(self, ids: Iterable[int]) -> None:
        for block in ids:
            if block in self.held:
                self.held[block] = min(self.MOST_USES, self.held[block] + 1)
                continue
            self.held[block] = 0
            if block in self._ghosts:
                del self._ghosts[block]
                self._main.append(block)
            else:
                self._small.append(block)
            while len(self.held) > self.capacity:
                self._evict()

    def _evict(self) -> None:
        if len(self._small) > self._small_size or not self._main:
            block = self._small.popleft()
            if self.held[block] >= self.MOVED_AT:
                self.held[block] = 0
                self._main.append(block)
                return
            self._ghosts[block] = None
            while len(self._ghosts) > self.capacity * 9 // 10:
                self._ghosts.popitem(last=False)
        else:
            block = self._main.popleft()
            if self.held[block]:
                self.held[block] -= 1
                self._main.append(block)
                return
        del self.held[block]


CACHES: dict[str, type[Cache]] = {"LRU": Lru, "S3-FIFO": S3Fifo, "LFU": Lfu}


def hit_rate(requests: Iterable[TraceRequest], cache: Cache) -> float:
    """Token hit rate in per cent."""
    hit = asked = 0
    for request in requests:
        ids = request.prefix_ids.tolist()
        blocks = sum(1 for _ in takewhile(cache.held.__contains__, ids))
        hit += min(ID_TOKENS * blocks, request.num_prompt_tokens)
        asked += request.num_prompt_tokens
        cache.touch(reversed(ids))
    return 100 * hit / asked
