"""The block pool: who holds each block, what it is keyed under, and which block is reused next."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kvhybrid.managers.arrays import EMPTY, IntArray
from kvhybrid.managers.eviction import ReuseOrder
from kvhybrid.managers.eviction.lru import LRU
from kvhybrid.managers.observer import PoolObserver


class BlockPoolError(RuntimeError):
    """A call that would break the pool: nothing was changed."""


class BlockPool:
    """Blocks are the integers ``1 … num_blocks - 1``; block 0 is the null block, never handed out or freed.

    A block is held (``refs > 0``) or free. The free queue has three parts, taken in this order: a stack of
    blocks without a key, the blocks never used yet, and the cached blocks in the order of reuse. A cached block
    loses its keys only when it is handed out (or by `evict`, which leaves it in its place).

    A key is a pair of group and prefix number. ``index[group, number]`` is the first block registered under it;
    later ones wait in ``_later`` and serve when the first goes. Nearly every block has one key that nobody else
    has; the others are marked ``_shared`` and take the slower path.
    """

    def __init__(self, num_blocks: int, num_groups: int, order: type[ReuseOrder] = LRU) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1 (the null block), found {num_blocks}")
        self.num_blocks = num_blocks
        self.num_free = num_blocks - 1
        self.refs = np.zeros(num_blocks, np.int32)
        self.number_of = np.zeros(num_blocks, np.int32)
        """The prefix number of the longest key of each block, 0 where it has none."""
        self.group_of = np.zeros(num_blocks, np.int32)
        """The group of the block's keys, where it has any."""
        self.index = np.zeros((num_groups, 1), np.int32)
        self.evictions = np.zeros(num_groups, np.int64)
        """Per group, the blocks that lost their keys to a new owner."""

        self.observers: tuple[PoolObserver, ...] = ()
        self._scratch = np.zeros(num_blocks, np.int32)
        self._stack = np.zeros(num_blocks, np.int32)
        self._stacked = 0
        self._next_unused = 1
        self._order_class = order
        self._order = order(num_blocks)
        self._shared = np.zeros(num_blocks, bool)
        self._later: dict[tuple[int, int], list[int]] = {}
        self._more_numbers: dict[int, list[int]] = {}

    @property
    def usage(self) -> float:
        """Share of the usable blocks that are held, 0 to 1."""
        usable = self.num_blocks - 1
        return 1.0 - self.num_free / usable if usable else 0.0

    # ---- taking and giving back

    def take(self, count: int) -> IntArray:
        """``count`` blocks from the front of the free queue, each held once; their keys are gone."""
        if not 0 <= count <= self.num_free:
            raise BlockPoolError(f"{count} blocks asked for, {self.num_free} of {self.num_blocks} are free")
        if not count:
            return EMPTY
        parts: list[IntArray] = []
        if from_stack := min(count, self._stacked):
            self._stacked -= from_stack
            parts.append(self._stack[self._stacked : self._stacked + from_stack][::-1].copy())
        if unused := min(count - from_stack, self.num_blocks - self._next_unused):
            parts.append(np.arange(self._next_unused, self._next_unused + unused, dtype=np.int32))
            self._next_unused += unused
        if cached := count - from_stack - unused:
            reused = self._order.pop(cached)
            self._evict_for_reuse(reused)
            parts.append(reused)
        ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
        self.refs[ids] = 1
        self.num_free -= count
        for observer in self.observers:
            observer.taken(ids)
        return ids

    def _evict_for_reuse(self, ids: IntArray) -> None:
        lost = ids[self.number_of[ids] > 0]
        groups = self.group_of[lost]
        self.evictions += np.bincount(groups, minlength=len(self.evictions))
        for observer in self.observers:
            observer.evicted(lost, groups)
        self.drop_keys(lost)

    def hold(self, ids: IntArray) -> None:
        """One more reference to each of ``ids``, which are held or cached; a free one leaves the queue."""
        refs = self.refs[ids]
        free = ids[refs == 0]
        if len(free):
            if not self.number_of[free].all():
                stale = free[self.number_of[free] == 0].tolist()
                raise BlockPoolError(
                    f"blocks {stale} are free and have no key: the hit that names them is out of date"
                )
            self._order.remove(free)
            self.num_free -= len(free)
            for observer in self.observers:
                observer.held(free)
        self.refs[ids] = refs + 1

    def count_free(self, ids: IntArray) -> int:
        """How many of ``ids`` are free: holding them takes as many from the queue."""
        return int((self.refs[ids] == 0).sum()) if len(ids) else 0

    def release(self, ids: IntArray) -> None:
        """One reference less to each of ``ids``, given in the order in which they are to be reused.

        Blocks that nobody holds any more go to the front of the free queue without a key, to the back with one.
        """
        if not len(ids):
            return
        refs = self.refs.take(ids, mode="clip")
        if refs.min() < 1 or ids.min() < 1 or ids.max() >= self.num_blocks or self._has_repeats(ids):
            self._refuse_release(ids)
        self.refs[ids] = refs - 1
        if refs.max() > 1:
            ids = ids[refs == 1]
        self.num_free += len(ids)
        for observer in self.observers:
            observer.freed(ids)
        keyed = self.number_of[ids] > 0
        if not keyed.all():
            self._push(ids[~keyed])
            ids = ids[keyed]
        if len(ids):
            self._order.append(ids)

    def release_pairs(self, ids: IntArray) -> None:
        """`release` for ids of which some may occur more than once, each with a reference of its own."""
        blocks, last, counts = np.unique(ids[::-1], return_index=True, return_counts=True)
        if (self.refs[blocks] < counts).any():
            self._refuse_release(blocks[self.refs[blocks] < counts])
        last = len(ids) - 1 - last
        again = np.ones(len(ids), bool)
        again[last] = False
        np.subtract.at(self.refs, ids[again], 1)
        self.release(ids[~again])

    def _push(self, ids: IntArray) -> None:
        self._stack[self._stacked : self._stacked + len(ids)] = ids[::-1]
        self._stacked += len(ids)

    def _refuse_release(self, ids: IntArray) -> None:
        outside = ids[(ids < 0) | (ids >= self.num_blocks)].tolist()
        if outside:
            raise BlockPoolError(f"blocks {outside} are not of this pool of {self.num_blocks}")
        if (ids == 0).any():
            raise BlockPoolError("block 0 is the null block; it is never freed")
        free = ids[self.refs[ids] < 1].tolist()
        if free:
            raise BlockPoolError(f"blocks {free} are free already")
        raise BlockPoolError(f"blocks {ids.tolist()}: one is given back more often than it is held")

    def _has_repeats(self, ids: IntArray) -> bool:
        at = np.arange(len(ids), dtype=np.int32)
        self._scratch[ids] = at
        return bool((self._scratch[ids] != at).any())

    # ---- keys

    def grow_index(self, numbers: int) -> None:
        """Make room for prefix numbers below ``numbers``."""
        have = self.index.shape[1]
        if numbers > have:
            grown = np.zeros((self.index.shape[0], max(numbers, 2 * have)), np.int32)
            grown[:, :have] = self.index
            self.index = grown

    def register(self, group: int, ids: IntArray, numbers: IntArray) -> None:
        """Key each of ``ids`` under the number beside it. Keys that a block has already stay."""
        row = self.index[group]
        if not row[numbers].any() and not self.number_of[ids].any():
            row[numbers] = ids
            self.number_of[ids] = numbers
            self.group_of[ids] = group
            for observer in self.observers:
                observer.stored(group, numbers)
            return
        for block, number in zip(ids.tolist(), numbers.tolist(), strict=True):
            self._register_one(group, block, number)

    def _register_one(self, group: int, block: int, number: int) -> None:
        if self.has_key(group, block, number):
            return
        first = int(self.index[group, number])
        if not first:
            self.index[group, number] = block
            for observer in self.observers:
                observer.stored(group, np.array([number], np.int32))
        else:
            self._later.setdefault((group, number), []).append(block)
            self._shared[first] = self._shared[block] = True
        if self.number_of[block]:
            self._more_numbers.setdefault(block, []).append(int(self.number_of[block]))
            self._shared[block] = True
        self.number_of[block] = number
        self.group_of[block] = group

    def register_shorter(self, group: int, block: int, number: int) -> None:
        """Key ``block`` also under a prefix shorter than the one that it has, which stays its longest."""
        longest = int(self.number_of[block])
        self._register_one(group, block, number)
        if longest and longest != number and int(self.number_of[block]) == number:
            self._more_numbers[block].remove(longest)
            self._more_numbers[block].append(number)
            self.number_of[block] = longest

    def has_key(self, group: int, block: int, number: int) -> bool:
        return int(self.index[group, number]) == block or block in self._later.get((group, number), ())

    def keys_of(self, block: int) -> list[int]:
        """The prefix numbers of ``block``, the longest first."""
        longest = int(self.number_of[block])
        return [longest, *self._more_numbers.get(block, ())] if longest else []

    def move_keys(self, source: int, target: int) -> None:
        """Let ``target``, which has no key, take over the keys of ``source``."""
        if self.number_of[target]:
            raise BlockPoolError(f"block {target} has keys already; it cannot take those of block {source}")
        group = int(self.group_of[source])
        for number in self.keys_of(source):
            if int(self.index[group, number]) == source:
                self.index[group, number] = target
            else:
                later = self._later[group, number]
                later[later.index(source)] = target
        self.number_of[target], self.number_of[source] = self.number_of[source], 0
        self._shared[target], self._shared[source] = self._shared[source], False
        self.group_of[target] = group
        if source in self._more_numbers:
            self._more_numbers[target] = self._more_numbers.pop(source)

    def evict(self, ids: Iterable[int]) -> None:
        """Drop the keys of ``ids``. Held blocks stay held, free ones keep their place in the queue."""
        chosen = np.fromiter(ids, np.int32)
        if len(chosen) and (chosen.min() < 0 or chosen.max() >= self.num_blocks):
            raise BlockPoolError(f"blocks to evict must lie in [0, {self.num_blocks}), found {chosen.tolist()}")
        self.drop_keys(np.unique(chosen))

    def drop_keys(self, ids: IntArray) -> None:
        """Withdraw every key of each of ``ids``; the next block registered under one serves from now on."""
        shared = self._shared[ids]
        if shared.any():
            for block in ids[shared].tolist():
                for number in self.keys_of(block):
                    self._withdraw(int(self.group_of[block]), block, number)
                self._more_numbers.pop(block, None)
            self._shared[ids] = False
            self.number_of[ids[shared]] = 0
            ids = ids[~shared]
        ids = ids[self.number_of[ids] > 0]
        groups, numbers = self.group_of[ids], self.number_of[ids]
        self.index[groups, numbers] = 0
        self.number_of[ids] = 0
        for observer in self.observers:
            observer.removed(groups, numbers)

    def _withdraw(self, group: int, block: int, number: int) -> None:
        later = self._later.get((group, number), [])
        if int(self.index[group, number]) == block:
            self.index[group, number] = later.pop(0) if later else 0
        else:
            later.remove(block)
        if later:
            return
        self._later.pop((group, number), None)
        if not self.index[group, number]:
            for observer in self.observers:
                observer.removed(np.array([group], np.int32), np.array([number], np.int32))

    def reset(self) -> bool:
        """Drop every key if no block is held; otherwise do nothing and return False."""
        if self.num_free != self.num_blocks - 1:
            return False
        queue = np.array(self.free_queue(), np.int32)
        self._push_all(queue)
        self._order = self._order_class(self.num_blocks)
        groups, numbers = self.index.nonzero()
        self.index[:] = 0
        self.number_of[:] = 0
        self._shared[:] = False
        self._later.clear()
        self._more_numbers.clear()
        for observer in self.observers:
            observer.cleared(groups.astype(np.int32), numbers.astype(np.int32))
        return True

    def _push_all(self, queue: IntArray) -> None:
        self._stacked, self._next_unused = 0, self.num_blocks
        self._push(queue)

    # ---- looking

    def free_queue(self) -> list[int]:
        """All free blocks, the one reused next first."""
        stack: list[int] = self._stack[: self._stacked][::-1].tolist()
        return [*stack, *range(self._next_unused, self.num_blocks), *self._order]

    def numbers_in_use(self) -> np.ndarray:
        """By prefix number, whether some block is keyed under it."""
        return np.asarray(self.index.any(axis=0))

    def count_by_group(self) -> tuple[np.ndarray, np.ndarray]:
        """Per group, its blocks with a key, and those of them that are free."""
        keyed = np.flatnonzero(self.number_of)
        groups, num_groups = self.group_of[keyed], len(self.index)
        free = groups[self.refs[keyed] == 0]
        return np.bincount(groups, minlength=num_groups), np.bincount(free, minlength=num_groups)
