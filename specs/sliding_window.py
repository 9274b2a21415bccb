"""Sliding-window attention: a token reads itself and the ``window - 1`` tokens before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvhybrid.specs.base import AttentionSpec, SuffixSpec


@dataclass(frozen=True, kw_only=True)
class SlidingWindowSpec(AttentionSpec, SuffixSpec):
    """``live(p) = [max(0, p - window + 1), p)``."""

    window: int
    """Tokens that a query attends to, itself included."""

    kind: ClassVar[str] = "sliding_window"
    retained: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 1:
            raise ValueError(f"SlidingWindowSpec: window must be at least 1, found {self.window}")

    def first(self, p: int) -> int:
        return max(0, p - self.window + 1)

    def release_cycle(self, block_size: int) -> tuple[int, int] | None:
        return block_size, (self.window - 2) % block_size

    def admission_blocks(
        self, max_in_flight_tokens: int, max_model_len: int, block_size: int | None = None
    ) -> int:
        """``min(⌈(W + F − 2) / B⌉ + 1, ⌈L / B⌉)``: worst-case alignment of W − 1 read and F written tokens."""
        size = block_size or self.block_size
        spread = self.window - 1 + min(max_in_flight_tokens, max_model_len)
        return min(-(-(spread - 1) // size) + 1, -(-max_model_len // size))
