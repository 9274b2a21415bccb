"""A sliding window plus the first tokens, which are attention sinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvhybrid.specs.base import AttentionSpec


@dataclass(frozen=True, kw_only=True)
class SinkWindowSpec(AttentionSpec):
    """``live(p) = [0, sinks)`` and ``[max(sinks, p - window + 1), p)``: two ranges (StreamingLLM)."""

    sinks: int
    """Tokens at the start that every query attends to."""
    window: int
    """Most recent tokens that a query attends to, itself included."""

    kind: ClassVar[str] = "sink_window"
    retained: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sinks < 1 or self.window < 1:
            raise ValueError(
                f"SinkWindowSpec: sinks and window must be at least 1, found {self.sinks} and {self.window}"
            )

    def release_cycle(self, block_size: int) -> tuple[int, int] | None:
        return block_size, (self.window - 2) % block_size

    def admission_blocks(
        self, max_in_flight_tokens: int, max_model_len: int, block_size: int | None = None
    ) -> int:
        """Computed by trying the last ``B`` of the longest steps: longer steps touch more blocks, and the count
        repeats with the block size."""
        size = block_size or self.block_size
        step = min(max(max_in_flight_tokens, 1), max_model_len)
        last = max_model_len - step
        return max(self.step_blocks(n, n + step, size) for n in range(max(last - size + 1, 0), last + 1))

    def live(self, p: int) -> tuple[range, ...]:
        sinks = min(self.sinks, p)
        return (range(sinks), range(max(sinks, p - self.window + 1), p))
