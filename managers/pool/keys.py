"""The keys of a pool's blocks: under which prefix each block can be found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray

from kvhybrid.managers.arrays import EMPTY, IntArray
from kvhybrid.managers.kernel import BlockArrays, merge_equal_rows
from kvhybrid.managers.kernel.plain import CACHED, EVICTIONS, LIVE, REUSABLE, BlockRecords
from kvhybrid.managers.pool.observer import PoolObserver

MANY: Final = 256
"""Arrays of blocks that are kept before they are merged."""


@mypyc_attr(native_class=False)  # an exception cannot be one
class BlockPoolError(RuntimeError):
    """A call that would break the pool: nothing was changed."""


class BlockKeys:
    """A key is a pair of group and prefix number. Several blocks may have the same key: the first of them serves
    look-ups, and the next one takes over when it loses the key.

    Nearly every block has one key, and the kernel links blocks of the same key. A block with several keys, and any
    block that shares a key with one, is *irregular*: the kernel leaves it to the slower path here, block by block.
    """

    def __init__(self, records: BlockRecords, counts: NDArray[np.int64]) -> None:
        """``records`` and ``counts`` are those of the pool."""
        num_groups = counts.shape[1]
        self.index = np.zeros((num_groups, 1), np.int32)
        """By group and prefix number, the first block with that key, 0 if no block has it."""
        self.number_of: IntArray = records["number"]
        """The prefix number of the longest key of each block, 0 if it has none."""
        self.arrays = BlockArrays(records, counts, self.index)
        self.observers: Sequence[PoolObserver] = ()
        """Those that are told when keys are added or dropped."""
        self._counts = counts
        self._refs: IntArray = records["refs"]
        self._group_of: IntArray = records["group"]
        self._ahead: IntArray = records["ahead"]
        self._behind: IntArray = records["behind"]
        """The neighbours of each regular block among those of the same key, 0 for none; ``_ahead`` of the first is
        the last."""
        self._irregular: IntArray = records["irregular"]
        self._later: list[dict[int, list[int]]] = [{} for _ in range(num_groups)]
        """Per group and number, the irregular blocks behind the first."""
        self._more_numbers: dict[int, list[int]] = {}
        """The other numbers of each block that has several."""
        self.noted: list[IntArray] = []
        """The blocks that got a key in this step, including null entries; emptied at the start of a step."""

    # ---- looking

    def of(self, block: int) -> list[int]:
        """The prefix numbers of ``block``, the longest prefix first."""
        longest = int(self.number_of[block])
        return [longest, *self._more_numbers.get(block, ())] if longest else []

    def blocks(self, group: int, number: int) -> list[int]:
        """The blocks of ``group`` that are keyed under ``number``, the one that serves look-ups first."""
        return self._linked(int(self.index[group, number])) + self._later[group].get(number, [])

    def has(self, group: int, block: int, number: int) -> bool:
        """Whether ``block`` is keyed under ``number`` in ``group``."""
        return block in self.blocks(group, number)

    def numbers_in_use(self) -> np.ndarray:
        """By prefix number, whether some block is keyed under it."""
        return np.asarray(self.index.any(axis=0))

    # ---- the current step

    def keyed_in_step(self) -> IntArray:
        """The blocks that got a key in this step: only its forward pass writes them."""
        if not self.noted:
            return EMPTY
        every: IntArray = np.unique(np.concatenate([ids.ravel() for ids in self.noted]))
        return every[every > 0]

    def _note(self, ids: IntArray) -> None:
        """Remember that ``ids`` got a key in this step."""
        self.noted.append(ids)
        if len(self.noted) > MANY:
            self.noted = [self.keyed_in_step()]

    # ---- giving keys

    def grow(self, numbers: int) -> None:
        """Make room for prefix numbers below ``numbers``."""
        have = self.index.shape[1]
        if numbers > have:
            grown = np.zeros((self.index.shape[0], numbers), np.int32)
            grown[:, :have] = self.index
            self.index = grown
            self.arrays.use_index(grown)

    def register(self, group: int, ids: IntArray, numbers: IntArray) -> None:
        """Key each of ``ids`` under the number at the same index. Existing keys of a block stay."""
        self.register_rows(np.array([group], np.int32), ids[None], numbers)

    def register_rows(self, groups: IntArray, ids: IntArray, numbers: IntArray) -> None:
        """`register` for several groups: row ``i`` of ``ids`` is of ``groups[i]``. Null entries are skipped."""
        self._note(ids)
        stored = np.zeros(ids.shape, np.int32) if self.observers else None
        if not self.arrays.register_rows(groups, ids, numbers, stored):
            for group, row in zip(groups.tolist(), ids.tolist(), strict=True):
                for block, number in zip(row, numbers.tolist(), strict=True):
                    if block:
                        self._register_one(group, block, number)
        elif stored is not None:
            self._tell_stored(groups, stored)

    def register_shorter(self, group: int, block: int, number: int) -> None:
        """Key ``block`` also under a prefix shorter than the one that it has, which stays its longest."""
        longest = int(self.number_of[block])
        self._note(np.array([block], np.int32))
        self._register_one(group, block, number)
        if longest and longest != number and int(self.number_of[block]) == number:
            self._more_numbers[block].remove(longest)
            self._more_numbers[block].append(number)
            self.number_of[block] = longest

    def _tell_stored(self, groups: IntArray, stored: IntArray) -> None:
        """Row ``i`` has the new keys of ``groups[i]``; groups in lockstep mostly have the same."""
        count = merge_equal_rows(stored)
        if count < 0:
            for i, row in enumerate(stored):
                self._tell_stored(groups[i : i + 1], row)
        elif count:
            new = np.ravel(stored)[:count]
            for observer in self.observers:
                observer.stored(groups, new)

    def _register_one(self, group: int, block: int, number: int) -> None:
        numbers = self.of(block)
        if number in numbers:
            return
        self._make_irregular(group, number)
        if numbers:
            self._make_irregular(group, numbers[0])
            self._more_numbers.setdefault(block, []).append(numbers[0])
            self._irregular[block] = 1
        else:
            self._count(group, block, 1)
        first = int(self.index[group, number])
        if first:
            self._later[group].setdefault(number, []).append(block)
            self._irregular[first] = self._irregular[block] = 1
        else:
            self.index[group, number] = block
            for observer in self.observers:
                observer.stored(np.array([group], np.int32), np.array([number], np.int32))
        self.number_of[block] = number

    def _make_irregular(self, group: int, number: int) -> None:
        """Take the blocks of a key, if it has several, out of the kernel's links."""
        linked = self._linked(int(self.index[group, number]))
        if len(linked) > 1:
            self._ahead[linked] = self._behind[linked] = 0
            self._irregular[linked] = 1
            self._later[group][number] = linked[1:]

    def _linked(self, block: int) -> list[int]:
        """``block``, unless it is 0, and those that are linked behind it."""
        found: list[int] = []
        while block:
            found.append(block)
            block = int(self._behind[block])
        return found

    def _count(self, group: int, block: int, by: int) -> None:
        """``block`` gets (``by`` is 1) or loses (-1) its only key, in ``group``."""
        held = bool(self._refs[block])
        if held and self._group_of[block] != group:
            self._counts[LIVE, group] += 1
            if self._group_of[block] >= 0:
                self._counts[LIVE, self._group_of[block]] -= 1
        self._group_of[block] = group
        self._counts[CACHED, group] += by
        if not held:
            self._counts[REUSABLE, group] += by

    def move(self, source: int, target: int) -> None:
        """Give the keys of ``source`` to ``target``, which has none."""
        if self.number_of[target]:
            raise BlockPoolError(f"block {target} has keys already; it cannot take those of block {source}")
        group = int(self._group_of[source])
        numbers = self.of(source)
        self._note(np.array([target], np.int32))
        for number in numbers:
            self._make_irregular(group, number)
            if int(self.index[group, number]) == source:
                self.index[group, number] = target
            else:
                later = self._later[group][number]
                later[later.index(source)] = target
        if numbers:
            self._count(group, source, -1)
            self._count(group, target, 1)
        self.number_of[target], self.number_of[source] = self.number_of[source], 0
        self._irregular[target], self._irregular[source] = self._irregular[source], 0
        if source in self._more_numbers:
            self._more_numbers[target] = self._more_numbers.pop(source)

    # ---- dropping keys

    def drop(self, ids: IntArray, for_reuse: bool = False) -> None:
        """Drop every key of each of ``ids``; ``for_reuse`` counts them as evictions."""
        gone = np.zeros((2, len(ids)), np.int32) if self.observers else None
        count = self.arrays.forget(ids, gone, for_reuse)
        if count < 0:
            irregular = self._irregular[ids] > 0
            self._drop_irregular(ids[irregular].tolist(), for_reuse)
            count = self.arrays.forget(ids[~irregular], gone, for_reuse)
        if gone is not None and count:
            for observer in self.observers:
                observer.removed(gone[0, :count], gone[1, :count])

    def _drop_irregular(self, blocks: list[int], for_reuse: bool) -> None:
        for block in blocks:
            group, numbers = int(self._group_of[block]), self.of(block)
            for number in numbers:
                self._drop_one(group, block, number)
            if numbers:
                self._count(group, block, -1)
                self._counts[EVICTIONS, group] += for_reuse
            self._more_numbers.pop(block, None)
            self.number_of[block] = 0
            self._irregular[block] = 0

    def _drop_one(self, group: int, block: int, number: int) -> None:
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

    def drop_all(self) -> None:
        """Drop every key of every block."""
        groups, numbers = self.index.nonzero()
        for array in (self.index, self.number_of, self._irregular, self._ahead, self._behind):
            array[:] = 0
        self._counts[CACHED] = self._counts[REUSABLE] = 0
        self._more_numbers.clear()
        for later in self._later:
            later.clear()
        for observer in self.observers:
            observer.cleared(groups.astype(np.int32), numbers.astype(np.int32))
