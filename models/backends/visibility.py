"""Which keys a query sees: the live sets of the attention specs, as masks over tensors."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Visibility:
    """A query sees the keys up to itself: all, a window or its chunk; and always the first ``sinks``."""

    window: int | None = None
    """Tokens, the query itself included."""
    chunk: int | None = None
    """Tokens of a chunk; chunks are aligned to position 0."""
    sinks: int = 0

    def first(self, p: int) -> int:
        """The lowest position, except sinks, that the query at ``p`` sees."""
        lowest = 0 if self.window is None else max(0, p - self.window + 1)
        return lowest if self.chunk is None else max(lowest, p // self.chunk * self.chunk)

    def ranges(self, start: int, stop: int) -> tuple[range, ...]:
        """The union of the positions that the queries in [start, stop) see, themselves included."""
        lowest = self.first(start)
        sinks = range(min(self.sinks, lowest))
        return (sinks, range(lowest, stop)) if sinks else (range(lowest, stop),)

    def mask(self, queries: Tensor, keys: Tensor) -> Tensor:
        """True where a query sees a key. Both are positions, in shapes that broadcast."""
        near = keys <= queries
        if self.window is not None:
            near = near & (keys > queries - self.window)
        if self.chunk is not None:
            near = near & (keys >= queries // self.chunk * self.chunk)
        if self.sinks:
            near = near | ((keys <= queries) & (keys < self.sinks))
        return near
