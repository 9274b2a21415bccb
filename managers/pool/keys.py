"""The keys of blocks: under which prefix each block can be found."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from mypy_extensions import mypyc_attr

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.kernel import BlockArrays, gather_alike
from kvhybrid.managers.kernel.plain import BLOCK, CACHED, COUNTS, EVICTIONS, LIVE, REUSABLE
from kvhybrid.managers.pool.observer import Audience, PoolObserver


@mypyc_attr(native_class=False)  # an exception cannot be one
class BlockPoolError(RuntimeError):
    """A call that would break the pool: nothing was changed."""


@mypyc_attr(allow_interpreted_subclasses=True)
class BlockKeys:
    """A key is a pair of group and prefix number. ``index[group, number]`` is the first block keyed under it, 0
    where there is none; later ones stand in line behind it and serve when the first goes.

    Nearly every block has one key. The others, and all that stand in line with them, are marked ``_tangled``: the
    kernel leaves them alone, and they take the slower path here, block by block.
    """

    def __init__(self, num_blocks: int, num_groups: int) -> None:
        self.num_blocks = num_blocks
        self.records = np.zeros(num_blocks, BLOCK)
        self.refs: IntArray = self.records["refs"]
        """How often each block is held."""
        self.number_of: IntArray = self.records["number"]
        """The prefix number of the longest key of each block, 0 where it has none."""
        self.group_of: IntArray = self.records["group"]
        """The group of each block that has a key or is held, -1 where it is held for nobody yet."""
        self.index = np.zeros((num_groups, 1), np.int32)
        self.counts = np.zeros((COUNTS, num_groups), np.int64)
        """Per group: blocks that are held, that have a key, that have one and are free; keys lost to reuse."""
        self.audience = Audience()
        self._ahead: IntArray = self.records["ahead"]
        self._behind: IntArray = self.records["behind"]
        """The neighbours of each block that is not tangled in the line of its key, 0 where it stands alone; the
        first one's ``_ahead`` is the last."""
        self._tangled: IntArray = self.records["tangled"]
        self._later: list[dict[int, list[int]]] = [{} for _ in range(num_groups)]
        """Per group and number, the tangled blocks that stand behind the first."""
        self._more_numbers: dict[int, list[int]] = {}
        """The other numbers of each block that has several."""
        self.arrays = BlockArrays(self.records, self.counts, self.index)

    @property
    def observers(self) -> tuple[PoolObserver, ...]:
        """Who is told of every change."""
        return self.audience.all

    @observers.setter
    def observers(self, observers: Iterable[PoolObserver]) -> None:
        self.audience = Audience(observers)

    @property
    def evictions(self) -> np.ndarray:
        """Per group, the blocks that lost their keys to a new owner."""
        return np.asarray(self.counts[EVICTIONS])

    def grow_index(self, numbers: int) -> None:
        """Make room for prefix numbers below ``numbers``."""
        have = self.index.shape[1]
        if numbers > have:
            grown = np.zeros((self.index.shape[0], numbers), np.int32)
            grown[:, :have] = self.index
            self.index = grown
            self.arrays.use_index(grown)

    def register(self, group: int, ids: IntArray, numbers: IntArray) -> None:
        """Key each of ``ids`` under the number beside it. Keys that a block has already stay."""
        self.register_rows(np.array([group], np.int32), ids[None], numbers)

    def register_rows(self, groups: IntArray, ids: IntArray, numbers: IntArray) -> None:
        """`register` for several groups: row ``i`` of ``ids`` is of ``groups[i]``. Null entries are skipped."""
        stored = np.zeros(ids.shape, np.int32) if self.audience.of_keys else None
        if not self.arrays.register_rows(groups, ids, numbers, stored):
            for group, row in zip(groups.tolist(), ids.tolist(), strict=True):
                for block, number in zip(row, numbers.tolist(), strict=True):
                    if block:
                        self._register_one(group, block, number)
        elif stored is not None:
            self._tell_stored(groups, stored)

    def _tell_stored(self, groups: IntArray, stored: IntArray) -> None:
        """Row ``i`` has the new keys of ``groups[i]``; groups that go in lockstep mostly have the same."""
        count = gather_alike(stored)
        if count < 0:
            for i, row in enumerate(stored):
                self._tell_stored(groups[i : i + 1], row)
        elif count:
            new = np.ravel(stored)[:count]
            for observer in self.audience.of_keys:
                observer.stored(groups, new)

    def _register_one(self, group: int, block: int, number: int) -> None:
        numbers = self.keys_of(block)
        if number in numbers:
            return
        self._untie(group, number)
        if numbers:
            self._untie(group, numbers[0])
            self._more_numbers.setdefault(block, []).append(numbers[0])
            self._tangled[block] = 1
        else:
            self._count_key(group, block, 1)
        first = int(self.index[group, number])
        if first:
            self._later[group].setdefault(number, []).append(block)
            self._tangled[first] = self._tangled[block] = 1
        else:
            self.index[group, number] = block
            for observer in self.audience.of_keys:
                observer.stored(np.array([group], np.int32), np.array([number], np.int32))
        self.number_of[block] = number

    def _count_key(self, group: int, block: int, by: int) -> None:
        """``block`` gets (``by`` is 1) or loses (-1) its only key, in ``group``."""
        held = bool(self.refs[block])
        if held and self.group_of[block] != group:
            self.counts[LIVE, group] += 1
            if self.group_of[block] >= 0:
                self.counts[LIVE, self.group_of[block]] -= 1
        self.group_of[block] = group
        self.counts[CACHED, group] += by
        if not held:
            self.counts[REUSABLE, group] += by

    def _untie(self, group: int, number: int) -> None:
        """Take the line of a key, if there is one, out of the kernel's hands."""
        line = self._chain(int(self.index[group, number]))
        if len(line) > 1:
            self._ahead[line] = self._behind[line] = 0
            self._tangled[line] = 1
            self._later[group][number] = line[1:]

    def _chain(self, block: int) -> list[int]:
        found: list[int] = []
        while block:
            found.append(block)
            block = int(self._behind[block])
        return found

    def register_shorter(self, group: int, block: int, number: int) -> None:
        """Key ``block`` also under a prefix shorter than the one that it has, which stays its longest."""
        longest = int(self.number_of[block])
        self._register_one(group, block, number)
        if longest and longest != number and int(self.number_of[block]) == number:
            self._more_numbers[block].remove(longest)
            self._more_numbers[block].append(number)
            self.number_of[block] = longest

    def line(self, group: int, number: int) -> list[int]:
        """The blocks keyed under ``number``, the one that serves first."""
        return self._chain(int(self.index[group, number])) + self._later[group].get(number, [])

    def has_key(self, group: int, block: int, number: int) -> bool:
        return block in self.line(group, number)

    def keys_of(self, block: int) -> list[int]:
        """The prefix numbers of ``block``, the longest first."""
        longest = int(self.number_of[block])
        return [longest, *self._more_numbers.get(block, ())] if longest else []

    def move_keys(self, source: int, target: int) -> None:
        """Let ``target``, which has no key, take over the keys of ``source``."""
        if self.number_of[target]:
            raise BlockPoolError(f"block {target} has keys already; it cannot take those of block {source}")
        group = int(self.group_of[source])
        numbers = self.keys_of(source)
        for number in numbers:
            self._untie(group, number)
            if int(self.index[group, number]) == source:
                self.index[group, number] = target
            else:
                later = self._later[group][number]
                later[later.index(source)] = target
        if numbers:
            self._count_key(group, source, -1)
            self._count_key(group, target, 1)
        self.number_of[target], self.number_of[source] = self.number_of[source], 0
        self._tangled[target], self._tangled[source] = self._tangled[source], 0
        if source in self._more_numbers:
            self._more_numbers[target] = self._more_numbers.pop(source)

    def drop_keys(self, ids: IntArray, for_reuse: bool = False) -> None:
        """Withdraw every key of each of ``ids``; the next block keyed under one serves from now on."""
        gone = np.zeros((2, len(ids)), np.int32) if self.audience.of_keys else None
        count = self.arrays.forget(ids, gone, for_reuse)
        if count < 0:
            tangled = self._tangled[ids] > 0
            self._drop_tangled(ids[tangled].tolist(), for_reuse)
            count = self.arrays.forget(ids[~tangled], gone, for_reuse)
        if gone is not None and count:
            for observer in self.audience.of_keys:
                observer.removed(gone[0, :count], gone[1, :count])

    def _drop_tangled(self, blocks: list[int], for_reuse: bool) -> None:
        for block in blocks:
            group, numbers = int(self.group_of[block]), self.keys_of(block)
            for number in numbers:
                self._withdraw(group, block, number)
            if numbers:
                self._count_key(group, block, -1)
                self.counts[EVICTIONS, group] += for_reuse
            self._more_numbers.pop(block, None)
            self.number_of[block] = 0
            self._tangled[block] = 0

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
            for observer in self.audience.of_keys:
                observer.removed(np.array([group], np.int32), np.array([number], np.int32))

    def _drop_all_keys(self) -> None:
        groups, numbers = self.index.nonzero()
        for array in (self.index, self.number_of, self._tangled, self._ahead, self._behind):
            array[:] = 0
        self.counts[CACHED] = self.counts[REUSABLE] = 0
        self._more_numbers.clear()
        for later in self._later:
            later.clear()
        for observer in self.audience.of_keys:
            observer.cleared(groups.astype(np.int32), numbers.astype(np.int32))

    def numbers_in_use(self) -> np.ndarray:
        """By prefix number, whether some block is keyed under it."""
        return np.asarray(self.index.any(axis=0))
