"""A window that keeps landmarks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvhybrid.specs import AttentionSpec


@dataclass(frozen=True, kw_only=True)
class LandmarkSpec(AttentionSpec):
    """``live(p)`` = the first ``landmark`` tokens of every ``stride`` tokens, and ``[p - window + 1, p)``."""

    window: int
    """Latest tokens that a query attends to, itself included."""
    landmark: int
    """Tokens at the start of every stretch that are never forgotten."""
    stride: int
    """Tokens of a stretch."""

    kind: ClassVar[str] = "landmark"
    retained: ClassVar[bool] = True
    manager: ClassVar[str] = "kvhybrid_landmark.manager:LandmarkManager"
    """A faster search than the generic manager's; the entry point leads to the spec, and the spec to it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.window >= 1 and 1 <= self.landmark < self.stride):
            raise ValueError(
                "LandmarkSpec: window must be at least 1 and landmark lie in [1, stride), "
                f"found window {self.window}, landmark {self.landmark}, stride {self.stride}"
            )

    def live(self, p: int) -> tuple[range, ...]:
        first = max(0, p - self.window + 1)
        landmarks = (range(start, min(start + self.landmark, first)) for start in range(0, first, self.stride))
        return (*landmarks, range(first, p))
