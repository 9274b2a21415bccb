"""The block pool: how often each block is held, and which free block is reused next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import Final, NoReturn

import numpy as np
from mypy_extensions import mypyc_attr

from kvhybrid.managers.arrays import EMPTY, IntArray
from kvhybrid.managers.eviction.base import BlockInfo, MakeOrder, ReuseOrder, ReuseOrderError
from kvhybrid.managers.eviction.lru import LRU
from kvhybrid.managers.kernel import put_span
from kvhybrid.managers.kernel.plain import BLOCK, CACHED, COUNTS, EVICTIONS, LIVE, REUSABLE
from kvhybrid.managers.pool.keys import BlockKeys, BlockPoolError
from kvhybrid.managers.pool.observer import ObserverSet, PoolObserver

NO_GROUP: Final = np.array([-1], np.int32)


@mypyc_attr(allow_interpreted_subclasses=True)
class BlockPool:
    """Blocks are the integers ``1 … num_blocks - 1``; block 0 is the null block, never handed out or freed.

    A block is held (``refs > 0``) or free. The free queue has three parts, used up in this order: a stack of
    blocks without a key, the blocks that were never used, and the cached blocks in the order of reuse. A cached
    block loses its keys when it is handed out, or by `evict`, which leaves it in its place.

    A call that would break the pool raises `BlockPoolError` and changes nothing.
    """

    def __init__(self, num_blocks: int, num_groups: int, order: MakeOrder = LRU) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1 (the null block), found {num_blocks}")
        records = np.zeros(num_blocks, BLOCK)
        self.num_blocks = num_blocks
        self.refs: IntArray = records["refs"]
        """How often each block is held."""
        self.group_of: IntArray = records["group"]
        """The group of each block that has a key or is held, -1 if it is held for no group yet."""
        self.release_of = records["release"]
        """For every cached free block, the number of the release that freed it; 0 for all others."""
        self.counts = np.zeros((COUNTS, num_groups), np.int64)
        """Per group: blocks that are held, that have a key, that have one and are free; keys lost to reuse."""
        self.keys = BlockKeys(records, self.counts)
        self.arrays = self.keys.arrays
        """The kernel's passes over the blocks."""
        self._observers = ObserverSet()
        self.num_free = num_blocks - 1
        self._stack = np.zeros(num_blocks, np.int32)
        self._stacked = 0
        self._next_unused = 1
        self.info = BlockInfo(self.release_of, self.group_of, self.keys.number_of)
        """What the order of reuse is told."""
        self._make_order = order
        self._releases = 0
        self._use_order(order(self.info))

    @property
    def observers(self) -> tuple[PoolObserver, ...]:
        """Those that are called at every change."""
        return self._observers.all

    @observers.setter
    def observers(self, observers: Iterable[PoolObserver]) -> None:
        self._observers = ObserverSet(observers)
        self.keys.observers = self._observers.of_keys

    @property
    def evictions(self) -> np.ndarray:
        """Per group, how many blocks lost their keys because they were reused."""
        return np.asarray(self.counts[EVICTIONS])

    @property
    def usage(self) -> float:
        """Share of the usable blocks that are held, 0 to 1."""
        usable = self.num_blocks - 1
        return 1.0 - self.num_free / usable if usable else 0.0

    # ---- taking and releasing

    def take(self, count: int) -> IntArray:
        """Take ``count`` blocks from the front of the free queue: reference count 1, of no group yet, no keys."""
        ids = self._draw(count)
        self._hand_out(NO_GROUP, ids)
        return ids

    def take_rows(self, shares: Sequence[tuple[IntArray, int]]) -> list[IntArray]:
        """`take` for several groups at once.

        Args:
            shares: Groups, and how many blocks each of them gets.

        Returns:
            For each share its blocks, shaped (groups, count).
        """
        if len(shares) == 1:
            groups, count = shares[0]
            ids = self._draw(len(groups) * count).reshape(len(groups), count)
            self._hand_out(groups, ids)
            return [ids]
        total = 0
        for groups, count in shares:
            total += len(groups) * count
        ids, start = self._draw(total), 0
        rows: list[IntArray] = []
        for groups, count in shares:
            end = start + len(groups) * count
            share = ids[start:end].reshape(len(groups), count)
            if count:
                self._hand_out(groups, share)
            rows.append(share)
            start = end
        return rows

    def _hand_out(self, groups: IntArray, ids: IntArray) -> None:
        self.arrays.allocate(groups, ids)
        for observer in self._observers.of_taken:
            observer.taken(ids.ravel())

    def _draw(self, count: int) -> IntArray:
        """Remove ``count`` blocks from the front of the free queue, and their keys."""
        if not 0 <= count <= self.num_free:
            raise BlockPoolError(f"{count} blocks asked for, {self.num_free} of {self.num_blocks} are free")
        if not count:
            return EMPTY
        stacked = min(count, self._stacked)
        unused = min(count - stacked, self.num_blocks - self._next_unused)
        cached = count - stacked - unused
        reused = self._reuse(cached) if cached else EMPTY
        self.num_free -= count
        if cached == count:
            return reused
        ids = np.empty(count, np.int32)
        if stacked:
            height, self._stacked = self._stacked, self._stacked - stacked
            ids[:stacked] = self._stack[self._stacked : height][::-1]
        if unused:
            put_span(ids, stacked, stacked + unused, self._next_unused, 1)
            self._next_unused += unused
        if cached:
            ids[-cached:] = reused
        return ids

    def _reuse(self, count: int) -> IntArray:
        """``count`` cached blocks, in the order of reuse. They lose their keys."""
        try:
            ids = self._order.pop(count)
            if self._order_is_foreign:
                ids = self._checked(ids, count)
        except Exception as error:
            raise self._order_failed(error) from error
        self._lose_keys(ids)
        return ids

    def _lose_keys(self, ids: IntArray) -> None:
        """``ids`` have left the order of reuse, and their keys are evicted."""
        if self._observers.of_evicted:
            lost = ids[self.keys.number_of[ids] > 0]
            groups = self.group_of[lost]
            for observer in self._observers.of_evicted:
                observer.evicted(lost, groups)
        self.keys.drop(ids, for_reuse=True)

    def _leave_order(self, ids: IntArray) -> None:
        """Remove ``ids`` from the order of reuse, which has them."""
        releases = self.release_of[ids]
        self.release_of[ids] = 0
        try:
            self._order.remove(ids, releases)
        except Exception as error:
            raise self._order_failed(error) from error

    def _checked(self, found: Sequence[int] | IntArray, count: int) -> IntArray:
        """``found``, the ``count`` blocks that a plug-in's order gave, as block ids."""
        ids = np.asarray(found)
        if ids.shape != (count,):
            raise ValueError(f"pop({count}) gave {ids.size} blocks")
        if ids.dtype.kind not in "iu":
            raise TypeError(f"pop({count}) gave {ids.tolist()}; accepted: integers")
        is_block = (ids > 0) & (ids < self.num_blocks)
        if not is_block.all() or len(np.unique(ids)) < count or not self.release_of[ids].all():
            raise ValueError(f"pop({count}) gave {ids.tolist()}; accepted: blocks of the order, each once")
        return ids.astype(np.int32)

    def _order_failed(self, error: Exception) -> ReuseOrderError:
        """The error that names the order and what it raised. The pool continues in order of release."""
        kind: type[object] = type(self._order)
        self._use_order(LRU(self.info))
        for release in np.unique(self.release_of[self.release_of > 0]).tolist():
            self._order.append(np.flatnonzero(self.release_of == release).astype(np.int32), release)
        found = ReuseOrderError(
            f"the order of reuse {kind.__module__}.{kind.__qualname__} raised {type(error).__name__}: {error}"
        )
        found.__cause__ = error  # compiled, "raise … from …" does not set it
        return found

    def _use_order(self, order: ReuseOrder) -> None:
        self._order = order
        self._order_counts_hits = type(order).hit is not ReuseOrder.hit
        self._order_is_foreign = not type(order).__module__.startswith("kvhybrid.managers.eviction.")

    def adopt(self, hit: IntArray) -> None:
        """`hold` the blocks of ``hit``, and tell the order of reuse."""
        if self._order_counts_hits:
            try:
                self._order.hit(hit[hit > 0])
            except Exception as error:
                raise self._order_failed(error) from error
        self.hold(hit)

    def hold(self, ids: IntArray) -> None:
        """Add a reference to each of ``ids``, which are held or cached. Null entries are skipped.

        A free block leaves the queue.

        Raises:
            BlockPoolError: One is free and has no key: it was reused, or evicted, since the hit was found.
        """
        freed = np.empty(ids.size, np.int32)
        count = self.arrays.hold(ids, freed)
        if count < 0:
            stale = ids[(ids > 0) & (self.refs[ids] == 0) & (self.keys.number_of[ids] == 0)].tolist()
            raise BlockPoolError(
                f"blocks {stale} are free and have no key: the hit that names them is out of date"
            )
        if count:
            free = freed[:count]
            self.num_free -= count
            self._leave_order(free)
            for observer in self._observers.of_held:
                observer.held(free)

    def count_free(self, ids: IntArray) -> int:
        """How many of ``ids`` are free, so that holding them would take them from the queue."""
        return self.arrays.count_free(ids)

    def release(self, ids: IntArray) -> None:
        """Drop a reference to each of ``ids``, given in the order in which they are to be reused.

        Blocks whose last reference it was return to the free queue: to the front without a key, to the back with
        one. ``ids`` may have a row per group; the rows are released one after another. Null entries are skipped.

        Raises:
            BlockPoolError: One is outside of the pool, or is released more often than it is held.
        """
        cached = np.empty(ids.size, np.int32)
        before = self._stacked
        self._releases += 1
        height, num_cached = self.arrays.release(ids, self._stack, before, cached, self._releases)
        if height < 0:
            self._refuse_release(ids.ravel())
        self._stacked = height
        self.num_free += height - before + num_cached
        if num_cached:
            try:
                self._order.append(cached[:num_cached], self._releases)
            except Exception as error:
                raise self._order_failed(error) from error
        for observer in self._observers.of_freed:
            observer.freed(np.concatenate((self._stack[before:height][::-1], cached[:num_cached])))

    def _refuse_release(self, ids: IntArray) -> NoReturn:
        outside = ids[(ids < 0) | (ids >= self.num_blocks)].tolist()
        if outside:
            raise BlockPoolError(f"blocks {outside} are not in this pool of {self.num_blocks}")
        free = ids[(self.refs[ids] < 1) & (ids > 0)].tolist()
        if free:
            raise BlockPoolError(f"blocks {free} are free already")
        raise BlockPoolError(f"blocks {ids.tolist()}: one is released more often than it is held")

    # ---- keys

    def evict(self, ids: Iterable[int]) -> None:
        """Drop the keys of ``ids``. Held blocks stay held, free ones keep their place in the queue.

        Raises:
            BlockPoolError: One is outside of the pool.
            TypeError: One is not an integer.
        """
        chosen = [index(block) for block in ids]
        if chosen and not 0 <= min(chosen) <= max(chosen) < self.num_blocks:
            raise BlockPoolError(f"blocks to evict must lie in [0, {self.num_blocks}), found {chosen}")
        self.keys.drop(np.unique(np.array(chosen, np.int32)))

    def discard(self, ids: IntArray) -> None:
        """Drop the keys of ``ids``, which nothing will hit any more. Those that are free are reused next."""
        free = ids[self.release_of[ids] > 0]
        self.keys.drop(ids)
        if len(free):
            self._stack[self._stacked : self._stacked + len(free)] = free
            self._stacked += len(free)
            self._leave_order(free)

    def reset(self) -> bool:
        """Drop every key if no block is held; otherwise do nothing and return False."""
        if self.num_free != self.num_blocks - 1:
            return False
        queue = np.array(self.free_queue(), np.int32)
        self._push_all(queue)
        self.release_of[:] = 0
        self._use_order(self._make_order(self.info))
        self.keys.drop_all()
        return True

    def _push_all(self, queue: IntArray) -> None:
        self._stack[: len(queue)] = queue[::-1]
        self._stacked, self._next_unused = len(queue), self.num_blocks

    def recount(self) -> None:
        """Recompute the counts per group after a roll-back has written to ``refs``."""
        groups = self.group_of
        held, keyed = (self.refs > 0) & (groups >= 0), self.keys.number_of > 0
        for what, chosen in ((LIVE, held), (CACHED, keyed), (REUSABLE, keyed & (self.refs == 0))):
            self.counts[what] = np.bincount(groups[chosen], minlength=self.counts.shape[1])

    # ---- looking

    def free_queue(self) -> list[int]:
        """All free blocks, the one reused next first."""
        stack: list[int] = self._stack[: self._stacked][::-1].tolist()
        return [*stack, *range(self._next_unused, self.num_blocks), *map(int, self._order)]
