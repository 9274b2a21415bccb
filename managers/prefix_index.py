"""Prefix keys as small integers, so that everything after hashing works on flat arrays."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kvhybrid.managers.arrays import EMPTY, IntArray
from kvhybrid.managers.number_spans import NumberSpans

GROWTH = 8
"""Numbers set aside when a sequence outgrows its run, so that it need not start one at every block."""


class PrefixPath:
    """A request's chain of keys as prefix numbers: entry i stands for its first ``(i + 1)`` units."""

    __slots__ = ("generation", "index", "numbers")

    def __init__(self) -> None:
        self.numbers: IntArray = EMPTY
        self.generation = 0
        self.index: PrefixIndex | None = None
        """Whose numbers they are: a request may go to one cache and then to another."""


class Run:
    """Keys that follow each other without a branch, under consecutive numbers from ``base`` on."""

    __slots__ = ("base", "children", "keys", "parent", "room", "units_before")

    def __init__(self, base: int, keys: list[bytes], parent: Run | None, units_before: int) -> None:
        self.base = base
        self.keys = keys
        self.parent = parent
        self.children: dict[bytes, Run] = {}
        self.room = 0
        """Numbers after the run's own that it may still grow into."""
        self.units_before = units_before


class PrefixIndex:
    """A tree of runs that gives each prefix key one number, from 1 up, while a block or a request needs it.

    Equal prefixes walk the same runs, so that a request of a thousand blocks costs a few comparisons of key
    lists and not a thousand look-ups: keys are chained, and two chains that are equal at one place are equal
    before it. Numbers that nobody needs are recycled now and then, tails first. A path that was not protected
    then is stale, and `extend` walks it afresh.
    """

    def __init__(self, room: int) -> None:
        self._root = Run(0, [], None, 0)
        self._runs: list[Run] = [self._root]
        self._run_of = np.zeros(1, np.int32)
        """For every number, its place in ``_runs``."""
        self._numbers = NumberSpans()
        self._generation = 0
        self._room = room
        self._given_since_sweep = 0

    def __len__(self) -> int:
        """Numbers ever needed at once, number 0 included: the length that arrays by number must have."""
        return self._numbers.end

    def key(self, number: int) -> bytes:
        run = self._runs[int(self._run_of[number])]
        return run.keys[number - run.base]

    def units(self, number: int) -> int:
        """How many units the prefix behind ``number`` has."""
        run = self._runs[int(self._run_of[number])]
        return run.units_before + number - run.base + 1

    @property
    def wants_sweep(self) -> bool:
        return self._given_since_sweep > self._room

    def is_current(self, path: PrefixPath) -> bool:
        return path.index is self and path.generation == self._generation

    def extend(self, path: PrefixPath, keys: list[bytes]) -> IntArray:
        """Bring ``path`` up to ``keys``, which continue the keys that it stands for."""
        if not self.is_current(path):
            path.numbers, path.generation, path.index = EMPTY, self._generation, self
        start = len(path.numbers)
        if start < len(keys):
            added = self._walk(path.numbers, keys[start:])
            path.numbers = np.concatenate((path.numbers, *added)) if start or len(added) > 1 else added[0]
        return path.numbers

    def _walk(self, numbers: IntArray, keys: list[bytes]) -> list[IntArray]:
        """The numbers of ``keys``, which follow the prefix behind the last of ``numbers``."""
        run, at = self._root, 0
        if len(numbers):
            last = int(numbers[-1])
            run = self._runs[self._run_of[last]]
            at = last - run.base + 1
        parts: list[IntArray] = []
        pos = 0
        while pos < len(keys):
            if at == len(run.keys):
                child = run.children.get(keys[pos])
                if child is None:
                    parts += self._append(run, keys[pos:], grows=len(numbers) > 0 and pos == 0)
                    return parts
                run, at = child, 0
            matched = _common(run.keys, at, keys, pos)
            parts.append(np.arange(run.base + at, run.base + at + matched, dtype=np.int32))
            pos, at = pos + matched, at + matched
            if pos < len(keys) and at < len(run.keys):
                self._split(run, at)
        return parts

    def _append(self, run: Run, keys: list[bytes], grows: bool) -> list[IntArray]:
        """Numbers for ``keys``, which come after the last key of ``run`` and are new there."""
        parts: list[IntArray] = []
        count = len(keys)
        if run.room and not run.children:
            fits = min(run.room, count)
            parts.append(self._number(int(self._run_of[run.base]), run.base + len(run.keys), fits))
            run.keys.extend(keys[:fits])
            run.room -= fits
            keys = keys[fits:]
        if keys:
            spare = GROWTH if grows else 0
            base = self._numbers.take(len(keys) + spare)
            child = Run(base, keys, run, run.units_before + len(run.keys))
            child.room = spare
            run.children[keys[0]] = child
            self._runs.append(child)
            parts.append(self._number(len(self._runs) - 1, base, len(keys)))
        self._given_since_sweep += count
        return parts

    def _number(self, place: int, first: int, count: int) -> IntArray:
        if len(self._run_of) < self._numbers.end:
            grown = np.zeros(max(2 * len(self._run_of), self._numbers.end), np.int32)
            grown[: len(self._run_of)] = self._run_of
            self._run_of = grown
        self._run_of[first : first + count] = place
        return np.arange(first, first + count, dtype=np.int32)

    def _split(self, run: Run, at: int) -> None:
        """Cut ``run`` before its key ``at``, so that it can branch there. Numbers stay what they are."""
        tail = Run(run.base + at, run.keys[at:], run, run.units_before + at)
        tail.children, tail.room = run.children, run.room
        for child in tail.children.values():
            child.parent = tail
        run.keys, run.children, run.room = run.keys[:at], {tail.keys[0]: tail}, 0
        self._runs.append(tail)
        self._run_of[tail.base : tail.base + len(tail.keys)] = len(self._runs) - 1

    def sweep(self, in_use: np.ndarray, held: Iterable[PrefixPath]) -> IntArray:
        """Recycle numbers that are not ``in_use`` (a mask by number) and lie on no ``held`` path: those of whole
        runs and of the tails of runs, as far as nothing that is needed comes after them.

        Returns the numbers that stand for nothing now.
        """
        current, self._generation = self._generation, self._generation + 1
        needed = np.zeros(self._numbers.end, bool)
        needed[: len(in_use)] = in_use[: len(needed)]
        for path in held:
            if path.index is self and path.generation == current:
                needed[path.numbers] = True
                path.generation = self._generation
        freed = [self._trim(run, needed) for run in self._leaves_first()]
        self._runs = [run for run in self._runs if run.keys or run is self._root]
        for place, run in enumerate(self._runs):
            self._run_of[run.base : run.base + len(run.keys)] = place
        self._given_since_sweep = 0
        return np.concatenate(freed) if freed else EMPTY

    def _leaves_first(self) -> list[Run]:
        order, stack = [], [self._root]
        while stack:
            run = stack.pop()
            stack.extend(run.children.values())
            order.append(run)
        return order[:0:-1]

    def _trim(self, run: Run, needed: np.ndarray) -> IntArray:
        """Give back the part of ``run`` after its last needed number; a run with children is needed whole."""
        if run.children:
            return EMPTY
        kept = 0
        wanted = np.flatnonzero(needed[run.base : run.base + len(run.keys)])
        if len(wanted):
            kept = int(wanted[-1]) + 1
        first, end = run.base + kept, run.base + len(run.keys)
        self._numbers.give_back(first, end + run.room)
        run.room = 0
        if not kept and run.parent is not None:
            del run.parent.children[run.keys[0]]
        del run.keys[kept:]
        return np.arange(first, end, dtype=np.int32)


def _common(run: list[bytes], at: int, keys: list[bytes], pos: int) -> int:
    """How many keys from ``run[at]`` and ``keys[pos]`` on are equal: where one differs, all later ones do."""
    limit = min(len(run) - at, len(keys) - pos)
    if run[at : at + limit] == keys[pos : pos + limit]:
        return limit
    low, high = 0, limit - 1
    while low < high:
        middle = (low + high) // 2
        if run[at + middle] == keys[pos + middle]:
            low = middle + 1
        else:
            high = middle
    return low
