"""What every pass of the kernel does, in numpy: the specification of the native form, and what runs without it."""

from __future__ import annotations

from array import array
from hashlib import sha256
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvhybrid.managers.arrays import IntArray

LIVE, CACHED, REUSABLE, EVICTIONS = range(4)
"""Rows of ``counts``: per group, its held blocks, those with a key, those of them that are free, and lost keys."""
COUNTS = 4

PARTS = ("refs", "number", "group", "ahead", "behind", "irregular")
BLOCK = np.dtype([("release", np.int64), *((part, np.int32) for part in PARTS)])
"""What is known of a block, side by side in memory, since most passes need several parts of it."""
BlockRecords: TypeAlias = NDArray[np.void]
"""An array of `BLOCK`."""


def token_bytes(tokens: list[int]) -> bytes:
    """``tokens`` as little-endian 64-bit integers."""
    return np.frombuffer(array("q", tokens), np.int64).astype("<i8").tobytes()


def extend_keys(keys: list[bytes], tokens: list[int], unit: int, root: bytes, natively: bool = True) -> None:
    """Append the keys of the units that ``tokens`` fill beyond those that have one.

    A key is the SHA-256 of the key before it, ``root`` for the first, and the unit's token ids as little-endian
    64-bit integers. ``natively`` allows the processor's own instructions, where the native form runs.
    """
    parent = keys[-1] if keys else root
    if unit < 1 or not isinstance(parent, bytes) or len(parent) != 32:
        raise ValueError(f"a unit of at least 1 and keys of 32 bytes are needed, found {unit} and {parent!r}")
    width, done = 8 * unit, len(keys)
    raw = memoryview(token_bytes(tokens[done * unit : len(tokens) // unit * unit]))
    for at in range(0, len(raw), width):
        parent = sha256(parent + raw[at : at + width]).digest()
        keys.append(parent)


def put_span(to: IntArray, start: int, end: int, first: int, step: int) -> None:
    """``to[start:end]``, of one dimension, gets ``first``, ``first + step``, ``first + 2 · step`` …"""
    if not 0 <= start <= end <= len(to):
        raise IndexError(f"entries [{start}, {end}) are not of {len(to)}")
    to[start:end] = first + step * np.arange(end - start)


def stretches(run_of: IntArray, numbers: IntArray) -> list[tuple[int, int, int]]:
    """``numbers`` as pieces that count up or down by one within one run: the run, the first number and the last.

    ``run_of`` has the run of every number.
    """
    found: list[tuple[int, int, int]] = []
    step = 0
    for number in numbers.tolist():
        if not 0 <= number < len(run_of):
            raise IndexError(f"number {number} is not of {len(run_of)}")
        run, (before, first, last) = int(run_of[number]), found[-1] if found else (-1, 0, 0)
        by = number - last
        if run == before and (by == step if step else abs(by) == 1):
            found[-1], step = (run, first, number), by
        else:
            found.append((run, number, number))
            step = 0
    return found


def gather_alike(rows: IntArray) -> int:
    """Where all ``rows`` are equal, move what is not 0 to the front of the first; how many those are, or -1."""
    rows = np.atleast_2d(rows)
    if not len(rows):
        return 0
    if not (rows == rows[0]).all():
        return -1
    kept = rows[0][rows[0] != 0]
    rows[0, : len(kept)] = kept
    return len(kept)


def mark_all(marks: IntArray, rows: IntArray, columns: IntArray, value: int) -> None:
    """Write ``value`` where each of ``rows`` crosses each of ``columns``."""
    _check(rows, len(marks), "row")
    _check(columns, marks.shape[1], "column")
    marks[rows[:, None], columns] = value


def mark_each(marks: IntArray, rows: IntArray, columns: IntArray, value: int) -> None:
    """Write ``value`` at every row and the column beside it."""
    if len(rows) != len(columns):
        raise IndexError(f"{len(columns)} columns need as many rows, found {len(rows)}")
    _check(rows, len(marks), "row")
    _check(columns, marks.shape[1], "column")
    marks[rows, columns] = value


def _check(places: IntArray, count: int, what: str) -> None:
    outside = places[(places < 0) | (places >= count)]
    if len(outside):
        raise IndexError(f"{what} {outside[0]} is not of {count}")


class BlockArrays:
    """The passes over the arrays of one pool, which owns them; ``BlockPool`` says what each array means.

    Ids come as int32 arrays of one dimension, or of two with a row for each group; 0 stands for no block and is
    passed over. A pass that refuses changes nothing.
    """

    def __init__(self, blocks: BlockRecords, counts: NDArray[np.int64], index: IntArray) -> None:
        self._refs = blocks["refs"]
        self._number_of = blocks["number"]
        self._group_of = blocks["group"]
        self._irregular = blocks["irregular"]
        self._ahead = blocks["ahead"]
        self._behind = blocks["behind"]
        self._release = blocks["release"]
        self._counts = counts
        self._index = index
        self.probes = 0
        """Entries that look-ups have examined."""

    def use_index(self, index: IntArray) -> None:
        """``index`` has been replaced by a longer one."""
        self._index = index

    # ---- who holds a block

    def hand_out(self, groups: IntArray, ids: IntArray) -> None:
        """Row ``i`` of ``ids``, which are free, is held once from now on, for ``groups[i]``, -1 for nobody yet."""
        rows = np.atleast_2d(ids)
        of_rows = groups[: len(rows)]
        self._refs[rows] = 1
        self._group_of[rows] = of_rows[:, None]
        self._release[rows] = 0
        np.add.at(self._counts[LIVE], of_rows[of_rows >= 0], rows.shape[1])

    def count_free(self, ids: IntArray) -> int:
        """How many of ``ids`` nobody holds."""
        return int(((self._refs[ids] == 0) & (ids > 0)).sum())

    def hold(self, ids: IntArray, freed: IntArray) -> int:
        """One more reference to each id. Those that were free go to ``freed``; returns how many, or -1 where
        a free one has no key."""
        every = ids[ids > 0]
        free = every[self._refs[every] == 0]
        if not self._number_of[free].all():
            return -1
        first = np.sort(np.unique(free, return_index=True)[1])
        free = free[first]
        np.add.at(self._refs, every, 1)
        np.add.at(self._counts[LIVE], self._group_of[free], 1)
        np.subtract.at(self._counts[REUSABLE], self._group_of[free], 1)
        freed[: len(free)] = free
        return len(free)

    def release(
        self, ids: IntArray, stack: IntArray, height: int, cached: IntArray, release: int
    ) -> tuple[int, int]:
        """One reference less to each id. Those that are free now go to ``cached`` if they have a key, marked with
        the number of this ``release``, and else row by row onto ``stack``, the first of a row on top.

        Returns the height of the stack and the number of the cached. The height is -1 where some id is no block
        or is held less often than it comes.
        """
        every = ids[ids != 0]
        if not len(every):
            return height, 0
        if every.min() < 0 or every.max() >= len(self._refs):
            return -1, 0
        np.subtract.at(self._refs, every, 1)
        if (self._refs[every] < 0).any():
            np.add.at(self._refs, every, 1)
            return -1, 0
        num_cached = 0
        rows = np.atleast_2d(ids)
        last_rows = {int(b): i for i, row in enumerate(rows) for b in row} if self._has_repeats(every) else None
        for i, row in enumerate(rows):
            free = row[(row != 0) & (self._refs[row] == 0)]
            if last_rows is not None:
                free = free[[last_rows[int(b)] == i for b in free]]
                free = free[np.sort(len(free) - 1 - np.unique(free[::-1], return_index=True)[1])]
            keyed = self._number_of[free] > 0
            bare, back = free[~keyed], free[keyed]
            groups = self._group_of[free]
            np.subtract.at(self._counts[LIVE], groups[groups >= 0], 1)
            np.add.at(self._counts[REUSABLE], self._group_of[back], 1)
            stack[height : height + len(bare)] = bare[::-1]
            cached[num_cached : num_cached + len(back)] = back
            self._release[back] = release
            height, num_cached = height + len(bare), num_cached + len(back)
        return height, num_cached

    @staticmethod
    def _has_repeats(ids: IntArray) -> bool:
        return len(np.unique(ids)) < len(ids)

    # ---- what a block is keyed under

    def register_rows(self, groups: IntArray, ids: IntArray, numbers: IntArray, stored: IntArray | None) -> bool:
        """Key column ``j`` of ``ids`` under ``numbers[j]``, row ``i`` for ``groups[i]``; a block whose key exists
        stands in line behind those that have it.

        False where a block has a key already or would stand behind an irregular one. ``stored`` gets, at the place
        of each block, its number where the key is new, and 0 elsewhere.
        """
        rows, width = np.atleast_2d(ids), len(self._index[0])
        numbers = np.where((numbers >= 0) & (numbers < width), numbers, 0)[: rows.shape[1]]
        first = self._index[groups[: len(rows), None], numbers]
        real = rows > 0
        if (self._number_of[rows] * real).any() or (real & (numbers == 0)).any():
            return False
        if (self._irregular[first] & real).any():
            return False
        for i, group in enumerate(groups[: len(rows)].tolist()):
            self._register(group, rows[i], numbers, first[i], None if stored is None else stored[i])
        return True

    def _register(
        self, group: int, row: IntArray, numbers: IntArray, first: IntArray, stored: IntArray | None
    ) -> None:
        real = row > 0
        ids, refs = row[real], self._refs[row[real]]
        moved = self._group_of[ids] != group
        old = self._group_of[ids[moved & (refs > 0)]]
        np.subtract.at(self._counts[LIVE], old[old >= 0], 1)
        self._counts[LIVE, group] += int((moved & (refs > 0)).sum())
        self._group_of[ids] = group
        self._number_of[ids] = numbers[real]
        self._counts[CACHED, group] += len(ids)
        self._counts[REUSABLE, group] += int((refs == 0).sum())
        new = real & (first == 0)
        self._index[group, numbers[new]] = row[new]
        for b, number in zip(row[real & (first > 0)].tolist(), numbers[real & (first > 0)].tolist(), strict=True):
            self._join_line(int(self._index[group, number]), b)
        if stored is not None:
            stored[: len(row)] = np.where(new, numbers, 0)

    def _join_line(self, first: int, b: int) -> None:
        last = int(self._ahead[first]) or first
        self._behind[last] = b
        self._ahead[b] = last
        self._ahead[first] = b

    def forget(self, ids: IntArray, gone: IntArray | None, for_reuse: int) -> int:
        """Withdraw the keys of ``ids``, and count them as evictions if ``for_reuse``.

        ``gone`` gets the groups and the numbers of the keys that no block has any more, in two rows. Returns how
        many, or -1 where an id is irregular.
        """
        if self._irregular[ids].any():
            return -1
        lost = ids[self._number_of[ids] > 0]
        groups, numbers = self._group_of[lost], self._number_of[lost]
        alone = (self._ahead[lost] == 0) & (self._behind[lost] == 0)
        self._index[groups[alone], numbers[alone]] = 0
        ended = alone.copy()
        for at in np.flatnonzero(~alone).tolist():
            ended[at] = self._leave_line(int(groups[at]), int(numbers[at]), int(lost[at]))
        self._number_of[lost] = 0
        np.subtract.at(self._counts[CACHED], groups, 1)
        np.subtract.at(self._counts[REUSABLE], groups[self._refs[lost] == 0], 1)
        if for_reuse:
            np.add.at(self._counts[EVICTIONS], groups, 1)
        if gone is None:
            return 0
        count = int(ended.sum())
        gone[0, :count], gone[1, :count] = groups[ended], numbers[ended]
        return count

    def _leave_line(self, group: int, number: int, b: int) -> bool:
        first, before, after = int(self._index[group, number]), int(self._ahead[b]), int(self._behind[b])
        self._ahead[b] = self._behind[b] = 0
        if b == first:
            self._index[group, number] = after
            if after:
                self._ahead[after] = 0 if before == after else before
            return not after
        self._behind[before] = after
        if after:
            self._ahead[after] = before
        else:
            self._ahead[first] = 0 if before == first else before
        return False

    def stand_for(self, ids: IntArray, numbers: IntArray) -> bool:
        """Whether every block of column ``j`` has ``numbers[j]`` as its longest key."""
        rows = np.atleast_2d(ids)
        return bool(((rows == 0) | (self._number_of[rows] == numbers[: rows.shape[1]])).all())

    # ---- what is cached of a prompt: entry j is, when all groups have a block for numbers[j]

    def _missing(self, groups: IntArray, numbers: IntArray, entries: np.ndarray) -> np.ndarray:
        self.probes += len(entries)
        return np.asarray((self._index[groups[:, None], numbers[entries]] == 0).any(axis=0))

    def first_missing(self, groups: IntArray, numbers: IntArray, start: int, end: int) -> int:
        """The lowest entry in ``[start, end)`` that is not cached, or ``end``."""
        entries = np.arange(start, end)
        missing = entries[self._missing(groups, numbers, entries)]
        return int(missing[0]) if len(missing) else end

    def last_missing(self, groups: IntArray, numbers: IntArray, start: int, end: int) -> int:
        """The highest entry in ``[start, end)`` that is not cached, or -1."""
        entries = np.arange(start, end)
        missing = entries[self._missing(groups, numbers, entries)]
        return int(missing[-1]) if len(missing) else -1

    def last_present(self, groups: IntArray, numbers: IntArray, step: int, end: int) -> int:
        """The highest cached entry ``j < end`` with ``(j + 1) % step == 0``, or -1."""
        entries = np.arange(step - 1, end, step)
        present = entries[~self._missing(groups, numbers, entries)]
        return int(present[-1]) if len(present) else -1

    def last_run(self, groups: IntArray, numbers: IntArray, length: int, end: int) -> int:
        """The highest ``e <= end`` such that the ``length`` entries below ``e`` are all cached, or -1."""
        entries = np.arange(end)
        last_hole = np.maximum.accumulate(np.where(self._missing(groups, numbers, entries), entries, -1))
        ends = np.flatnonzero(entries - last_hole >= length)
        return int(ends[-1]) + 1 if len(ends) else -1

    def gather(self, groups: IntArray, numbers: IntArray, found: IntArray) -> None:
        """Into row ``i`` of ``found``, the blocks of ``groups[i]`` under ``numbers``, 0 where there is none."""
        found[:] = self._index[groups[: len(found), None], numbers[: found.shape[1]]]
