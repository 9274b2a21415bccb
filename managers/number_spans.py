"""Consecutive numbers to hand out and take back."""

from __future__ import annotations


class NumberSpans:
    """The free numbers from 1 up: spans that came back, and everything from ``end`` on."""

    def __init__(self) -> None:
        self.end = 1
        self._spans: list[tuple[int, int]] = []
        self._sorted = True

    def take(self, count: int) -> int:
        """The first of ``count`` consecutive numbers: from the lowest span that holds them, or from the end."""
        if not self._sorted:
            self._merge()
        for i, (start, end) in enumerate(self._spans):
            if end - start >= count:
                if end - start == count:
                    del self._spans[i]
                else:
                    self._spans[i] = (start + count, end)
                return start
        first, self.end = self.end, self.end + count
        return first

    def give_back(self, start: int, end: int) -> None:
        """The numbers ``[start, end)`` are free again."""
        if start < end:
            self._spans.append((start, end))
            self._sorted = False

    def _merge(self) -> None:
        merged: list[tuple[int, int]] = []
        for start, end in sorted(self._spans):
            if merged and merged[-1][1] == start:
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((start, end))
        if merged and merged[-1][1] == self.end:
            self.end = merged.pop()[0]
        self._spans, self._sorted = merged, True
