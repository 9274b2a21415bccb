"""Allocates spans of consecutive numbers."""

from __future__ import annotations

from bisect import bisect_left, insort


class NumberSpans:
    """The free numbers from 1 up: spans that were given back, and everything from ``end`` on."""

    def __init__(self) -> None:
        self.end = 1
        """All numbers from here on are free."""
        self._spans: list[tuple[int, int]] = []
        """(length, first number) of the spans below ``end``, the shortest first."""
        self._returned: list[tuple[int, int]] = []
        """(first, end) of the spans that were given back and are not merged with their neighbours yet."""

    def take(self, count: int) -> int:
        """Allocate ``count`` consecutive numbers, from the shortest span that has them, and return the first."""
        if self._returned:
            self._merge()
        at = bisect_left(self._spans, (count, 0))
        if at == len(self._spans):
            first, self.end = self.end, self.end + count
            return first
        length, first = self._spans.pop(at)
        if length > count:
            insort(self._spans, (length - count, first + count))
        return first

    def give_back(self, start: int, end: int) -> None:
        """The numbers ``[start, end)`` are free again."""
        if start < end:
            self._returned.append((start, end))

    def _merge(self) -> None:
        merged: list[tuple[int, int]] = []
        for start, end in sorted(self._returned + [(first, first + length) for length, first in self._spans]):
            if merged and merged[-1][1] == start:
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((start, end))
        if merged and merged[-1][1] == self.end:
            self.end = merged.pop()[0]
        self._spans = sorted((end - start, start) for start, end in merged)
        self._returned.clear()
