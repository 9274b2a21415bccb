"""A piece of the tree of prefixes that does not branch."""

from __future__ import annotations


class Run:
    """Keys that follow each other without a branch, under consecutive numbers from ``base`` on.

    They are ``keys[start : start + length]``. The list is that of the first request with this prefix, or the run's
    own if the run is the smaller part of that list. Lists only grow, so several runs may share one. A request's
    list may grow beyond the run; the next sweep then copies the run's part.
    """

    __slots__ = (
        "_owns_keys",
        "base",
        "children",
        "keys",
        "length",
        "parent",
        "place",
        "room",
        "start",
        "units_before",
    )

    def __init__(
        self, base: int, parent: Run | None, units_before: int, keys: list[bytes], start: int, length: int
    ) -> None:
        self.base = base
        self.parent = parent
        self.units_before = units_before
        """Units of the prefix that the run continues."""
        self.keys = keys
        self.start = start
        self.length = length
        self.children: dict[bytes, Run] = {}
        """Runs that continue this one, by their first keys."""
        self.room = 0
        """Numbers after the run's own that are reserved for it."""
        self.place = 0
        """Its place among the runs of its index."""
        self._owns_keys = False

    def key(self, number: int) -> bytes:
        """The key of ``number``, which is one of the run's."""
        return self.keys[self.start + number - self.base]

    def keys_between(self, first: int, last: int) -> list[bytes]:
        """The keys of the numbers from ``first`` to ``last``, both included, ascending or descending."""
        at = self.start - self.base
        return (
            self.keys[at + first : at + last + 1] if first <= last else self.keys[at + last : at + first + 1][::-1]
        )

    def common(self, at: int, keys: list[bytes], pos: int) -> int:
        """How many of the run's keys from ``at`` on equal ``keys[pos:]``: if one does, so do all before it."""
        limit, known, first = min(self.length - at, len(keys) - pos), self.keys, self.start + at
        if not limit or known[first + limit - 1] == keys[pos + limit - 1]:
            return limit
        low, high = 0, limit - 1
        while low < high:
            middle = (low + high) // 2
            if known[first + middle] == keys[pos + middle]:
                low = middle + 1
            else:
                high = middle
        return low

    def grow(self, keys: list[bytes], pos: int, count: int) -> None:
        """Append ``keys[pos : pos + count]``, which continue the run's prefix, under reserved numbers."""
        if self.keys is not keys:
            if not self._owns_keys:
                self._own_keys()
            self.keys += keys[pos : pos + count]  # a list of its own ends with the run
        self.length += count
        self.room -= count

    def split(self, at: int) -> Run:
        """Cut the run before its key ``at``, so that it can branch there. Returns the second part."""
        tail = Run(self.base + at, self, self.units_before + at, self.keys, self.start + at, self.length - at)
        tail.children, tail.room = self.children, self.room
        for child in tail.children.values():
            child.parent = tail
        self.length, self.children, self.room = at, {tail.keys[tail.start]: tail}, 0
        return tail

    def drop_foreign_keys(self) -> None:
        """Copy the run's keys if most of its list belongs to others, so that it does not keep those alive."""
        if 2 * self.length < len(self.keys):
            self._own_keys()

    def _own_keys(self) -> None:
        self.keys = self.keys[self.start : self.start + self.length]
        self.start, self._owns_keys = 0, True
