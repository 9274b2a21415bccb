"""Prefix ids for requests: equal prefixes get equal numbers, whatever a format calls them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from kvhybrid.replay.trace import PrefixIds

ROOT = -1
"""The predecessor of a prompt's first part."""


class Segment(NamedTuple):
    """A run of tokens. Equal names mean equal tokens, apart from the length."""

    name: Hashable
    num_tokens: int


class UnequalPrefixError(ValueError):
    """An id that identifies a whole prefix follows a different id than before."""

    def __init__(self, index: int, name: Hashable) -> None:
        super().__init__(f"{name} after a different id than before")
        self.index = index


class PrefixNumbers:
    """Numbers prefixes in the order of their first appearance."""

    def __init__(self) -> None:
        self._ids: dict[Hashable, tuple[int, int]] = {}
        """By id: its number, and the number of its predecessor."""
        self._contents: dict[tuple[int, Hashable], int] = {}
        """By the number of a part's predecessor and the part's content."""
        self._count = 0

    def of_ids(self, ids: Sequence[Hashable]) -> PrefixIds:
        """The numbers of ids that identify whole prefixes.

        Raises `UnequalPrefixError` if an id does not follow the same id as before; nothing is numbered then.
        """
        found: list[int] = []
        added: list[Hashable] = []
        before = ROOT
        for index, name in enumerate(ids):
            known = self._ids.get(name)
            if known is None:
                known = self._ids[name] = (self._count + len(added), before)
                added.append(name)
            elif known[1] != before:
                for new in added:
                    del self._ids[new]
                raise UnequalPrefixError(index, name)
            before = known[0]
            found.append(before)
        self._count += len(added)
        return np.array(found, np.int64)

    def of_contents(self, contents: Iterable[Hashable]) -> PrefixIds:
        """The numbers of the parts of one prompt, given what each part contains."""
        found: list[int] = []
        before = ROOT
        for content in contents:
            number = self._contents.setdefault((before, content), self._count)
            self._count += number == self._count
            found.append(number)
            before = number
        return np.array(found, np.int64)

    def of_segments(self, segments: Iterable[Segment], part_tokens: int) -> PrefixIds:
        """The numbers of a prompt that consists of ``segments``."""
        return self.of_contents(parts_of(segments, part_tokens))

    def start_of(self, parts: PrefixIds, num_tokens: int, part_tokens: int) -> PrefixIds:
        """The numbers of the first ``num_tokens`` tokens of a text with ``parts``.

        A last part that is cut short gets a number of its own, since others may continue it differently.
        """
        full = num_tokens // part_tokens
        return np.concatenate((parts[:full], self.unshared(1))) if num_tokens % part_tokens else parts[:full]

    def unshared(self, num_parts: int) -> PrefixIds:
        """``num_parts`` numbers that nothing else has."""
        first = self._count
        self._count += num_parts
        return np.arange(first, self._count, dtype=np.int64)


def parts_of(segments: Iterable[Segment], part_tokens: int) -> Iterator[Hashable]:
    """The content of every part of ``part_tokens`` tokens; the last part may have fewer."""
    pieces: list[tuple[Hashable, int, int]] = []
    room = part_tokens
    for name, num_tokens in segments:
        start = 0
        while start < num_tokens:
            taken = min(room, num_tokens - start)
            pieces.append((name, start, taken))
            start += taken
            room -= taken
            if not room:
                yield tuple(pieces)
                pieces, room = [], part_tokens
    if pieces:
        yield tuple(pieces)
