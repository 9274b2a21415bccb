"""The keys of blocks: under which prefix each block can be found."""

from __future__ import annotations

import numpy as np

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.observer import PoolObserver


class BlockPoolError(RuntimeError):
    """A call that would break the pool: nothing was changed."""


class BlockKeys:
    """A key is a pair of group and prefix number. ``index[group, number]`` is the first block keyed under it, 0
    where there is none; later ones wait in line and serve when the first goes.

    Nearly every block has one key that nobody else has; the others are marked ``_shared`` and take the slower
    path, block by block.
    """

    def __init__(self, num_blocks: int, num_groups: int) -> None:
        self.num_blocks = num_blocks
        self.number_of = np.zeros(num_blocks, np.int32)
        """The prefix number of the longest key of each block, 0 where it has none."""
        self.group_of = np.zeros(num_blocks, np.int32)
        """The group of the block's keys, where it has any."""
        self.index = np.zeros((num_groups, 1), np.int32)
        self.observers: tuple[PoolObserver, ...] = ()
        self._shared = np.zeros(num_blocks, bool)
        self._later: list[dict[int, list[int]]] = [{} for _ in range(num_groups)]
        self._more_numbers: dict[int, list[int]] = {}

    def grow_index(self, numbers: int) -> None:
        """Make room for prefix numbers below ``numbers``."""
        have = self.index.shape[1]
        if numbers > have:
            grown = np.zeros((self.index.shape[0], max(numbers, 2 * have)), np.int32)
            grown[:, :have] = self.index
            self.index = grown

    def register(self, group: int, ids: IntArray, numbers: IntArray) -> None:
        """Key each of ``ids`` under the number beside it. Keys that a block has already stay."""
        self.register_rows(np.array([group], np.int32), ids[None], numbers)

    def register_rows(self, groups: IntArray, ids: IntArray, numbers: IntArray) -> None:
        """`register` for several groups: row ``i`` of ``ids`` belongs to ``groups[i]``."""
        if self.number_of[ids].any():
            for group, row in zip(groups.tolist(), ids.tolist(), strict=True):
                for block, number in zip(row, numbers.tolist(), strict=True):
                    self._register_one(group, block, number)
            return
        first = self.index[groups[:, None], numbers]
        self.number_of[ids] = numbers
        self.group_of[ids] = groups[:, None]
        if not first.any():
            self.index[groups[:, None], numbers] = ids
            for observer in self.observers:
                for group in groups.tolist():
                    observer.stored(group, numbers)
            return
        for i, group in enumerate(groups.tolist()):
            self._queue_behind(group, ids[i], numbers, first[i])

    def _queue_behind(self, group: int, ids: IntArray, numbers: IntArray, first: IntArray) -> None:
        """Key ``ids``, of which some come behind the block in ``first``."""
        taken = first > 0
        new = numbers[~taken]
        self.index[group, new] = ids[~taken]
        self._shared[first[taken]] = True
        self._shared[ids[taken]] = True
        later = self._later[group]
        for block, number in zip(ids[taken].tolist(), numbers[taken].tolist(), strict=True):
            later.setdefault(number, []).append(block)
        if len(new):
            for observer in self.observers:
                observer.stored(group, new)

    def _register_one(self, group: int, block: int, number: int) -> None:
        if self.has_key(group, block, number):
            return
        first = int(self.index[group, number])
        if not first:
            self.index[group, number] = block
            for observer in self.observers:
                observer.stored(group, np.array([number], np.int32))
        else:
            self._later[group].setdefault(number, []).append(block)
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
        return int(self.index[group, number]) == block or block in self._later[group].get(number, ())

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
                later = self._later[group][number]
                later[later.index(source)] = target
        self.number_of[target], self.number_of[source] = self.number_of[source], 0
        self._shared[target], self._shared[source] = self._shared[source], False
        self.group_of[target] = group
        if source in self._more_numbers:
            self._more_numbers[target] = self._more_numbers.pop(source)

    def drop_keys(self, ids: IntArray) -> None:
        """Withdraw every key of each of ``ids``; the next block keyed under one serves from now on."""
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
        later = self._later[group].get(number, [])
        if int(self.index[group, number]) == block:
            self.index[group, number] = later.pop(0) if later else 0
        else:
            later.remove(block)
        if later:
            return
        self._later[group].pop(number, None)
        if not self.index[group, number]:
            for observer in self.observers:
                observer.removed(np.array([group], np.int32), np.array([number], np.int32))

    def _drop_all_keys(self) -> None:
        groups, numbers = self.index.nonzero()
        self.index[:] = 0
        self.number_of[:] = 0
        self._shared[:] = False
        self._more_numbers.clear()
        for later in self._later:
            later.clear()
        for observer in self.observers:
            observer.cleared(groups.astype(np.int32), numbers.astype(np.int32))

    def numbers_in_use(self) -> np.ndarray:
        """By prefix number, whether some block is keyed under it."""
        return np.asarray(self.index.any(axis=0))
