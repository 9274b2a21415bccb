"""Prefix keys as small integers, so that everything after hashing works on flat arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from kvhybrid.managers.arrays import EMPTY, IntArray


class PrefixPath:
    """A request's chain of keys as prefix numbers: entry i stands for its first ``(i + 1)`` units."""

    __slots__ = ("generation", "numbers")

    def __init__(self) -> None:
        self.numbers: IntArray = EMPTY
        self.generation = 0


class PrefixIndex:
    """Gives each prefix key one number, from 1 up, for as long as a block or a request needs it.

    Numbers that nobody needs are recycled now and then. A path that was not protected then is stale, and
    `extend` looks its keys up afresh.
    """

    def __init__(self, room: int) -> None:
        self._number_of: dict[bytes, int] = {}
        self._keys: list[bytes] = [b""]
        self._units = np.zeros(1, np.int32)
        self._spare: IntArray = EMPTY
        self._generation = 0
        self._room = room
        self._given_since_sweep = 0

    def __len__(self) -> int:
        """Numbers ever needed at once, number 0 included: the length that arrays by number must have."""
        return len(self._keys)

    def key(self, number: int) -> bytes:
        return self._keys[number]

    def units(self, number: int) -> int:
        """How many units the prefix behind ``number`` has."""
        return int(self._units[number])

    @property
    def wants_sweep(self) -> bool:
        return self._given_since_sweep > self._room

    def is_current(self, path: PrefixPath) -> bool:
        return path.generation == self._generation

    def extend(self, path: PrefixPath, keys: Sequence[bytes]) -> IntArray:
        """Bring ``path`` up to ``keys``, which continue the keys that it stands for."""
        if path.generation != self._generation:
            path.numbers, path.generation = EMPTY, self._generation
        start = len(path.numbers)
        if start == len(keys):
            return path.numbers
        added = keys[start:]
        found = list(map(self._number_of.get, added))
        if None in found:
            unknown = [i for i, number in enumerate(found) if number is None]
            fresh = self._fresh_numbers([added[i] for i in unknown])
            self._units[fresh] = np.asarray(unknown, np.int32) + (start + 1)
            for i, number in zip(unknown, fresh.tolist(), strict=True):
                found[i] = number
        numbers = np.asarray(found, np.int32)
        path.numbers = np.concatenate((path.numbers, numbers)) if start else numbers
        return path.numbers

    def sweep(self, in_use: np.ndarray, held: Iterable[PrefixPath]) -> IntArray:
        """Recycle the numbers that are not ``in_use`` (a mask by number) and lie on no ``held`` path.

        Returns the numbers that stand for nothing now.
        """
        current, self._generation = self._generation, self._generation + 1
        needed = np.zeros(len(self._keys), bool)
        needed[: len(in_use)] = in_use
        for path in held:
            if path.generation == current:
                needed[path.numbers] = True
                path.generation = self._generation
        needed[0] = True
        spare = np.flatnonzero(~needed).astype(np.int32)
        for number in spare.tolist():
            self._number_of.pop(self._keys[number], None)
            self._keys[number] = b""
        self._spare = spare
        self._given_since_sweep = 0
        return spare

    def _fresh_numbers(self, keys: list[bytes]) -> IntArray:
        """Numbers for ``keys``, which have none: recycled ones first."""
        count = len(keys)
        self._given_since_sweep += count
        recycled, self._spare = self._spare[:count], self._spare[count:]
        for number, key in zip(recycled.tolist(), keys, strict=False):
            self._keys[number] = key
        first = len(self._keys)
        self._keys.extend(keys[len(recycled) :])
        if len(self._units) < len(self._keys):
            self._units = np.resize(self._units, max(2 * len(self._units), len(self._keys)))
        numbers = np.concatenate((recycled, np.arange(first, len(self._keys), dtype=np.int32)))
        self._number_of.update(zip(keys, numbers.tolist(), strict=True))
        return numbers
