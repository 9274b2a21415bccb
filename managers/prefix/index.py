"""Prefix keys as small integers, so that everything after hashing works on flat arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvhybrid.managers.arrays import EMPTY, IntArray
from kvhybrid.managers.kernel import put_span, stretches
from kvhybrid.managers.prefix.key_chain import KeyChain
from kvhybrid.managers.prefix.number_spans import NumberSpans
from kvhybrid.managers.prefix.run import Run

GROWTH: Final = 8
"""Numbers set aside when a sequence outgrows its run, so that it need not start one at every block."""


class PrefixPath:
    """A request's chain of keys as prefix numbers: entry i stands for its first ``(i + 1)`` units."""

    __slots__ = ("_room", "generation", "index", "last", "numbers")

    def __init__(self) -> None:
        self.numbers: IntArray = EMPTY
        self.last = 0
        """The last of them, 0 where there is none."""
        self.generation = 0
        self.index: PrefixIndex | None = None
        """Whose numbers they are: a request may go to one cache and then to another."""
        self._room: IntArray = EMPTY

    def start_anew(self, index: PrefixIndex, generation: int, room: int) -> None:
        """Stand for nothing of ``index``, with room for so many numbers."""
        self.index, self.generation = index, generation
        self._room = np.empty(room, np.int32)
        self.numbers, self.last = self._room[:0], 0

    def append(self, first: int, count: int) -> None:
        """Go on with ``count`` numbers from ``first`` on. Arrays that were read before stay as they are."""
        have = len(self.numbers)
        end = have + count
        if end > len(self._room):
            room = np.empty(end + GROWTH + end // 8, np.int32)
            room[:have] = self.numbers
            self._room = room
        put_span(self._room, have, end, first, 1)
        self.numbers, self.last = self._room[:end], first + count - 1


class PrefixIndex:
    """A tree of runs that gives each prefix key one number, from 1 up, while a block or a request needs it.

    Equal prefixes walk the same runs, so that a request of a thousand blocks costs a few comparisons of key
    lists and not a thousand look-ups: keys are chained, and two chains that are equal at one place are equal
    before it. Numbers that nobody needs are recycled now and then, tails first. A path that was not protected
    then is stale, and `extend` walks it afresh.
    """

    def __init__(self, room: int) -> None:
        self._root = Run(0, None, 0, [], 0, 0)
        self._runs: list[Run] = [self._root]
        """By place. A place whose run is gone is on ``_spare_places`` until it is given again; there are as many
        as there once were runs at a time."""
        self._spare_places: list[int] = []
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
        return self._runs[int(self._run_of[number])].key(number)

    def units(self, number: int) -> int:
        """How many units the prefix behind ``number`` has."""
        run = self._runs[int(self._run_of[number])]
        return run.units_before + number - run.base + 1

    def keys_of(self, numbers: IntArray) -> list[bytes]:
        """The key of each of ``numbers``."""
        keys: list[bytes] = []
        for place, first, last in stretches(self._run_of, numbers):
            keys += self._runs[place].keys_between(first, last)
        return keys

    def units_of(self, numbers: IntArray) -> IntArray:
        """How many units the prefix behind each of ``numbers`` has."""
        parts: list[IntArray] = []
        for place, first, last in stretches(self._run_of, numbers):
            run, step = self._runs[place], 1 if first <= last else -1
            before = run.units_before + 1 - run.base
            parts.append(np.arange(first + before, last + before + step, step, dtype=np.int32))
        return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else EMPTY

    @property
    def wants_sweep(self) -> bool:
        return self._given_since_sweep > self._room

    def is_current(self, path: PrefixPath) -> bool:
        return path.index is self and path.generation == self._generation

    def extend(self, path: PrefixPath, chain: KeyChain) -> IntArray:
        """Bring ``path`` up to ``chain``, whose first keys are those that it stands for."""
        keys = chain.keys
        if not self.is_current(path):
            path.start_anew(self, self._generation, len(keys) + GROWTH)
        if len(path.numbers) < len(keys):
            self._walk(path, keys)
        return path.numbers

    def _walk(self, path: PrefixPath, keys: list[bytes]) -> None:
        """Follow ``keys`` from the end of ``path`` on, and lay down new runs where they were never seen."""
        run, at, pos = self._root, 0, len(path.numbers)
        grows = pos > 0
        if grows:
            run = self._runs[self._run_of[path.last]]
            at = path.last - run.base + 1
        while pos < len(keys):
            if at == run.length:
                child = run.children.get(keys[pos])
                if child is None:
                    self._append(run, path, keys, grows)
                    return
                run, at = child, 0
            matched = run.common(at, keys, pos)
            path.append(run.base + at, matched)
            pos, at = pos + matched, at + matched
            grows = False
            if pos < len(keys) and at < run.length:
                self._add(run.split(at))

    def _append(self, run: Run, path: PrefixPath, keys: list[bytes], grows: bool) -> None:
        """Number the rest of ``keys``, which comes after the last key of ``run`` and is new there."""
        pos = len(path.numbers)
        self._given_since_sweep += len(keys) - pos
        if run.room and not run.children:
            fits = min(run.room, len(keys) - pos)
            path.append(run.base + run.length, fits)
            run.grow(keys, pos, fits)
            pos += fits
        if pos < len(keys):
            count, room = len(keys) - pos, GROWTH if grows else 0
            child = Run(self._numbers.take(count + room), run, run.units_before + run.length, keys, pos, count)
            child.room = room
            child.let_go_of_others()
            run.children[keys[pos]] = child
            self._add(child)
            path.append(child.base, count)

    def _add(self, run: Run) -> None:
        """Give ``run`` a place, and note it for its numbers and for those that it may grow into."""
        if self._spare_places:
            run.place = self._spare_places.pop()
            self._runs[run.place] = run
        else:
            run.place = len(self._runs)
            self._runs.append(run)
        if len(self._run_of) < self._numbers.end:
            grown = np.zeros(max(2 * len(self._run_of), self._numbers.end), np.int32)
            grown[: len(self._run_of)] = self._run_of
            self._run_of = grown
        put_span(self._run_of, run.base, run.base + run.length + run.room, run.place, 0)

    def sweep(self, in_use: NDArray[np.bool_], held: Iterable[PrefixPath]) -> list[tuple[int, int]]:
        """Recycle numbers that are not ``in_use`` (a mask by number) and lie on no ``held`` path: those of whole
        runs and of the tails of runs, as far as nothing that is needed comes after them.

        Returns the spans ``[first, end)`` of numbers that stand for nothing now.
        """
        current, self._generation = self._generation, self._generation + 1
        needed = bytearray(self._numbers.end)
        needed[: len(in_use)] = in_use[: len(needed)].tobytes()
        for path in held:
            if path.index is self and path.generation == current:
                path.generation = self._generation
                needed[path.last] = 1  # what comes before it is kept for its sake
        freed: list[tuple[int, int]] = []
        for run in self._leaves_first():
            if not run.children:  # a run may have lost its children just now
                freed.append(self._trim(run, needed))
            if run.length:
                run.let_go_of_others()
            else:
                self._runs[run.place] = self._root
                self._spare_places.append(run.place)
        self._given_since_sweep = 0
        return freed

    def _leaves_first(self) -> list[Run]:
        order, stack = [], [self._root]
        while stack:
            run = stack.pop()
            stack.extend(run.children.values())
            order.append(run)
        return order[:0:-1]

    def _trim(self, run: Run, needed: bytearray) -> tuple[int, int]:
        """Give back the part of ``run``, which has no children, after its last number that is ``needed``."""
        end = run.base + run.length
        first = max(needed.rfind(1, run.base, end) + 1, run.base)
        self._numbers.give_back(first, end + run.room)
        run.room, run.length = 0, first - run.base
        if not run.length and run.parent is not None:
            del run.parent.children[run.keys[run.start]]
        return first, end
