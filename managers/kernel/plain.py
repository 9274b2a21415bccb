"""The kernel in numpy and hashlib: it specifies the native form, and replaces it if there was no compiler."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from hashlib import sha256
from operator import index
from sys import byteorder
from typing import SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvhybrid.managers.arrays import IntArray

LIVE, CACHED, REUSABLE, EVICTIONS = range(4)
"""Rows of ``counts``: held blocks, blocks with a key, free blocks with a key, keys lost to reuse; per group."""
COUNTS = 4

PARTS = ("refs", "number", "group", "ahead", "behind", "irregular")
BLOCK = np.dtype([("release", np.int64), *((part, np.int32) for part in PARTS)])
"""The record of a block; its fields are adjacent in memory since most passes read several of them.

- ``release``: the number of the release that freed it, 0 while it is held.
- ``refs``: its reference count.
- ``number``: the prefix number of its (longest) key, 0 without a key.
- ``group``: the group that holds it or has its key, -1 for none.
- ``ahead``, ``behind``: its neighbours in the list of blocks with the same key, 0 for none; the first block's
  ``ahead`` is the last block.
- ``irregular``: whether it has several keys, or is in the list of a block that has.
"""
BlockRecords: TypeAlias = NDArray[np.void]
"""An array of `BLOCK`."""

LOWEST_ID, HIGHEST_ID = -(1 << 63), (1 << 63) - 1


def as_token_ids(tokens: Iterable[SupportsIndex]) -> list[int]:
    """``tokens`` as a new list of plain ints. Nothing else decides what a token id is.

    Any integer is accepted, numpy's too (`operator.index`). Raises TypeError for anything else, a bool included,
    and ValueError for an integer that does not fit in 64 bits, signed.
    """
    return [
        token if type(token) is int and LOWEST_ID <= token <= HIGHEST_ID else _as_token_id(token, place)
        for place, token in enumerate(list(tokens))
    ]


def _as_token_id(token: SupportsIndex, place: int) -> int:
    try:
        if isinstance(token, bool):
            raise TypeError
        number = index(token)
    except TypeError:
        raise TypeError(f"token id {place} must be an integer, found {token!r}") from None
    if not LOWEST_ID <= number <= HIGHEST_ID:
        raise ValueError(f"token id {place} must fit in 64 bits, found {number}")
    return number


def preimage(tokens: list[int], parent: bytes, extra: bytes = b"") -> bytes:
    """What the key of one unit is the SHA-256 of: its token ids, its parent's key of 32 bytes, and its extra keys.

    Every id takes 4 bytes, unsigned, if all ids of the unit fit, and otherwise 8 bytes, signed, little-endian. The
    parent, ``extra``, the width (1 byte) and the number of ids (8 bytes) follow. Token ids come first so that
    this part can be hashed before the parent is known.

    Different units never have the same preimage, since it can be read back: its last 9 bytes give the width and
    the number of ids, hence where the ids end; the next 32 bytes are the parent; the rest is ``extra``. So equal
    keys of different units would be a collision of SHA-256.

    Raises TypeError for an id that is not a plain ``int``, OverflowError for one beyond 64 bits.
    """
    other = set(map(type, tokens)) - {int}
    if other:
        raise TypeError(f"a token id must be an int, found {other.pop().__name__}")
    is_narrow = min(tokens) >= 0 and max(tokens) < 1 << 32
    ids = array("I" if is_narrow else "q", tokens)
    if byteorder == "big":
        ids.byteswap()
    return b"".join((ids.tobytes(), parent, extra, bytes((ids.itemsize,)), len(ids).to_bytes(8, "little")))


def extend_keys(keys: list[bytes], tokens: list[int], unit: int, root: bytes, natively: bool = True) -> None:
    """Append the keys of the units that ``tokens`` fill beyond those that have one.

    A key is the SHA-256 of the unit's `preimage`; the parent of the first unit is ``root``. ``natively`` lets the
    native form use the processor's instructions for SHA-256. An error adds no key.
    """
    parent = keys[-1] if keys else root
    if unit < 1 or not isinstance(parent, bytes) or len(parent) != 32:
        raise ValueError(f"a unit of at least 1 and keys of 32 bytes are needed, found {unit} and {parent!r}")
    added: list[bytes] = []
    for start in range(len(keys) * unit, len(tokens) - unit + 1, unit):
        parent = sha256(preimage(tokens[start : start + unit], parent)).digest()
        added.append(parent)
    keys.extend(added)


def put_span(to: IntArray, start: int, end: int, first: int, step: int) -> None:
    """Write ``first``, ``first + step``, ``first + 2 · step`` … to ``to[start:end]``, of one dimension."""
    if not 0 <= start <= end <= len(to):
        raise IndexError(f"entries [{start}, {end}) are not in [0, {len(to)})")
    to[start:end] = first + step * np.arange(end - start)


def stretches(run_of: IntArray, numbers: IntArray) -> list[tuple[int, int, int]]:
    """Split ``numbers`` into pieces that count up or down by one within one run.

    ``run_of[n]`` is the run of number ``n``. Returns the run, the first and the last number of each piece.
    """
    found: list[tuple[int, int, int]] = []
    step = 0
    for number in numbers.tolist():
        if not 0 <= number < len(run_of):
            raise IndexError(f"number {number} is not in [0, {len(run_of)})")
        run, (before, first, last) = int(run_of[number]), found[-1] if found else (-1, 0, 0)
        by = number - last
        if run == before and (by == step if step else abs(by) == 1):
            found[-1], step = (run, first, number), by
        else:
            found.append((run, number, number))
            step = 0
    return found


def merge_equal_rows(rows: IntArray) -> int:
    """If all ``rows`` are equal, move the nonzero entries of the first row to its front.

    Returns the number of these entries, or -1 if the rows differ.
    """
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
    """Write ``value`` at ``[rows[i], columns[i]]`` for every ``i``."""
    if len(rows) != len(columns):
        raise IndexError(f"{len(columns)} columns need as many rows, found {len(rows)}")
    _check(rows, len(marks), "row")
    _check(columns, marks.shape[1], "column")
    marks[rows, columns] = value


def _check(places: IntArray, count: int, what: str) -> None:
    outside = places[(places < 0) | (places >= count)]
    if len(outside):
        raise IndexError(f"{what} {outside[0]} is not in [0, {count})")


class BlockArrays:
    """The operations of a block pool on its arrays.

    The pool owns the arrays. `BLOCK` describes a record and `COUNTS` the counts; ``index[group, number]`` is the
    first block that is keyed under a prefix number, 0 for none. Ids are int32 arrays of one dimension, or of two
    with a row for each group; 0 is the null block and is skipped. A method that returns False or -1, or raises,
    has changed nothing.

    The native form checks for accesses outside of the arrays, and raises TypeError, ValueError, IndexError or
    OverflowError: types, shapes and ranges of arguments, arguments that share memory with what the method writes,
    and records or index entries that point to nothing.
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
        """Number of entries that look-ups have examined."""

    def use_index(self, index: IntArray) -> None:
        """Replace the index by a longer one."""
        self._index = index

    # ---- reference counts

    def allocate(self, groups: IntArray, ids: IntArray) -> None:
        """Give the free blocks in row ``i`` of ``ids`` one reference, for ``groups[i]``; -1 if not known yet."""
        rows = np.atleast_2d(ids)
        of_rows = groups[: len(rows)]
        self._refs[rows] = 1
        self._group_of[rows] = of_rows[:, None]
        self._release[rows] = 0
        np.add.at(self._counts[LIVE], of_rows[of_rows >= 0], rows.shape[1])

    def count_free(self, ids: IntArray) -> int:
        """Number of ``ids`` that are free."""
        return int(((self._refs[ids] == 0) & (ids > 0)).sum())

    def hold(self, ids: IntArray, freed: IntArray) -> int:
        """Add one reference to each id. Those that were free are written to ``freed``.

        Returns their number, or -1 if a free one has no key.
        """
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
        """Take one reference from each id.

        Blocks that become free are written to ``cached`` if they have a key, marked with the number of this
        ``release``, and are otherwise pushed on ``stack`` row by row, the first of a row on top.

        Returns the new height of the stack and the number of blocks in ``cached``. The height is -1 if some id is
        outside of the pool or has fewer references than it occurs.
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

    # ---- keys

    def register_rows(self, groups: IntArray, ids: IntArray, numbers: IntArray, stored: IntArray | None) -> bool:
        """Key ``ids[i, j]`` under ``numbers[j]`` for ``groups[i]``.

        A block whose key exists is appended to the list of blocks with that key. ``stored[i, j]`` becomes the
        number if its key is new, otherwise 0. Returns False if a block has a key already or if the first block of
        its list is irregular.
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
            self._append_to_list(int(self._index[group, number]), b)
        if stored is not None:
            stored[: len(row)] = np.where(new, numbers, 0)

    def _append_to_list(self, first: int, b: int) -> None:
        last = int(self._ahead[first]) or first
        self._behind[last] = b
        self._ahead[b] = last
        self._ahead[first] = b

    def forget(self, ids: IntArray, gone: IntArray | None, for_reuse: int) -> int:
        """Remove the keys of ``ids``, and count them as evictions if ``for_reuse``.

        The groups and the numbers of the keys that no block has any more are written to the two rows of ``gone``.
        Returns the number of those keys, or -1 if a block is irregular.
        """
        if self._irregular[ids].any():
            return -1
        lost = ids[self._number_of[ids] > 0]
        groups, numbers = self._group_of[lost], self._number_of[lost]
        alone = (self._ahead[lost] == 0) & (self._behind[lost] == 0)
        self._index[groups[alone], numbers[alone]] = 0
        ended = alone.copy()
        for at in np.flatnonzero(~alone).tolist():
            ended[at] = self._remove_from_list(int(groups[at]), int(numbers[at]), int(lost[at]))
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

    def _remove_from_list(self, group: int, number: int, b: int) -> bool:
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

    def are_keyed_under(self, groups: IntArray, ids: IntArray, numbers: IntArray) -> bool:
        """Whether every block ``ids[i, j]`` has the (longest) key ``numbers[j]`` in ``groups[i]``."""
        rows = np.atleast_2d(ids)
        keyed = self._number_of[rows] == numbers[: rows.shape[1]]
        in_group = self._group_of[rows] == groups[: len(rows), None]
        return bool(((rows == 0) | (keyed & in_group)).all())

    # ---- look-ups: entry j of a prompt is cached if every group has a block for numbers[j]

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
        """The highest ``e <= end`` so that the ``length`` entries before ``e`` are all cached, or -1."""
        entries = np.arange(end)
        last_hole = np.maximum.accumulate(np.where(self._missing(groups, numbers, entries), entries, -1))
        ends = np.flatnonzero(entries - last_hole >= length)
        return int(ends[-1]) + 1 if len(ends) else -1

    def gather(self, groups: IntArray, numbers: IntArray, found: IntArray) -> None:
        """Write to row ``i`` of ``found`` the blocks of ``groups[i]`` under ``numbers``, 0 for none."""
        found[:] = self._index[groups[: len(found), None], numbers[: found.shape[1]]]
