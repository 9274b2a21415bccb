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
"""Numbers reserved for a sequence that outgrows its run, so that it need not start a new run at every block."""


class PrefixPath:
    """A request's chain of keys as prefix numbers: entry ``i`` is that of its first ``i + 1`` units."""

    __slots__ = ("_room", "generation", "index", "last", "numbers")

    def __init__(self) -> None:
        self.numbers: IntArray = EMPTY
        self.last = 0
        """The last of them, 0 if there is none."""
        self.generation = 0
        self.index: PrefixIndex | None = None
        """The index that gave them: a request may be sent to one cache and then to another."""
        self._room: IntArray = EMPTY

    def reset(self, index: PrefixIndex, generation: int, room: int) -> None:
        """Become the empty path of ``index``, with room for ``room`` numbers."""
        self.index, self.generation = index, generation
        self._room = np.empty(room, np.int32)
        self.numbers, self.last = self._room[:0], 0

    def append(self, first: int, count: int) -> None:
        """Append ``count`` numbers from ``first`` on. Arrays that were read before do not change."""
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

    Equal prefixes follow the same runs, so a request of a thousand blocks costs a few comparisons of key lists
    and not a thousand look-ups: keys are chained, so two chains that are equal at one place are equal before it.
    Numbers that no block and no request needs are recycled periodically, tails first (`sweep`). A path that was
    not protected then is stale, and `extend` follows its keys once more.
    """

    def __init__(self, room: int) -> None:
        self.room = room
        """How many numbers are given before the next sweep is due."""
        self._root = Run(0, None, 0, [], 0, 0)
        self._runs: list[Run] = [self._root]
        """By place. The place of a run that is gone is on ``_spare_places`` until it is reused."""
        self._spare_places: list[int] = []
        self._run_of = np.zeros(1, np.int32)
        """For every number, the place of its run in ``_runs``."""
        self._numbers = NumberSpans()
        self._generation = 0
        self._given_since_sweep = 0

    def __len__(self) -> int:
        """The length that arrays indexed by number must have, number 0 included."""
        return self._numbers.end

    def key(self, number: int) -> bytes:
        """The key of ``number``."""
        return self._runs[int(self._run_of[number])].key(number)

    def units(self, number: int) -> int:
        """How many units the prefix of ``number`` has."""
        run = self._runs[int(self._run_of[number])]
        return run.units_before + number - run.base + 1

    def keys_of(self, numbers: IntArray) -> list[bytes]:
        """The key of each of ``numbers``."""
        keys: list[bytes] = []
        for place, first, last in stretches(self._run_of, numbers):
            keys += self._runs[place].keys_between(first, last)
        return keys

    def units_of(self, numbers: IntArray) -> IntArray:
        """How many units the prefix of each of ``numbers`` has."""
        parts: list[IntArray] = []
        for place, first, last in stretches(self._run_of, numbers):
            run, step = self._runs[place], 1 if first <= last else -1
            before = run.units_before + 1 - run.base
            parts.append(np.arange(first + before, last + before + step, step, dtype=np.int32))
        return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else EMPTY

    @property
    def generation(self) -> int:
        """How often numbers were recycled: a number means the same prefix while this stays the same."""
        return self._generation

    @property
    def wants_sweep(self) -> bool:
        """Whether a sweep is due."""
        return self._given_since_sweep > self.room

    def is_current(self, path: PrefixPath) -> bool:
        """Whether the numbers of ``path`` are of this index and still valid."""
        return path.index is self and path.generation == self._generation

    def extend(self, path: PrefixPath, chain: KeyChain) -> IntArray:
        """Bring ``path`` up to ``chain``, whose first keys are those of its numbers. Returns all its numbers."""
        keys = chain.keys
        if not self.is_current(path):
            path.reset(self, self._generation, len(keys) + GROWTH)
        if len(path.numbers) < len(keys):
            self._walk(path, keys)
        return path.numbers

    def _walk(self, path: PrefixPath, keys: list[bytes]) -> None:
        """Follow ``keys`` from the end of ``path`` on, and add a run for those that are new."""
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
        """Number the rest of ``keys``, which follows the last key of ``run`` and is new there."""
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
            child.drop_foreign_keys()
            run.children[keys[pos]] = child
            self._add(child)
            path.append(child.base, count)

    def _add(self, run: Run) -> None:
        """Give ``run`` a place, and note it for its numbers and for those reserved for it."""
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
        """Recycle numbers that are not needed: those of whole runs, and of the tails of runs.

        Args:
            in_use: A mask by number: numbers that must stay, and with them all before them in their prefix.
            held: Paths that stay valid, with all their numbers.

        Returns:
            The spans ``[first, end)`` of recycled numbers, some of them empty.
        """
        current, self._generation = self._generation, self._generation + 1
        needed = bytearray(self._numbers.end)
        needed[: len(in_use)] = in_use[: len(needed)].tobytes()
        for path in held:
            if path.index is self and path.generation == current:
                path.generation = self._generation
                needed[path.last] = 1  # and so is all that comes before it
        freed: list[tuple[int, int]] = []
        for run in self._leaves_first():
            if not run.children:  # none, or none any more: leaves come first
                freed.append(self._trim(run, needed))
            if run.length:
                run.drop_foreign_keys()
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
        """Recycle the numbers of ``run``, which has no children, after its last one that is ``needed``."""
        end = run.base + run.length
        first = max(needed.rfind(1, run.base, end) + 1, run.base)
        self._numbers.give_back(first, end + run.room)
        run.room, run.length = 0, first - run.base
        if not run.length and run.parent is not None:
            del run.parent.children[run.keys[run.start]]
        return first, end
