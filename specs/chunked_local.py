"""Chunked local attention: a token reads the tokens of its own chunk."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import ClassVar

from kvhybrid.specs.base import AttentionSpec, SuffixSpec


@dataclass(frozen=True, kw_only=True)
class ChunkedLocalAttentionSpec(AttentionSpec, SuffixSpec):
    """``live(p) = [p // chunk · chunk, p)``."""

    chunk: int
    """Tokens per chunk."""

    kind: ClassVar[str] = "chunked_local"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunk < 1:
            raise ValueError(f"ChunkedLocalAttentionSpec: chunk must be at least 1, found {self.chunk}")

    def first(self, p: int) -> int:
        return p // self.chunk * self.chunk

    def release_cycle(self, block_size: int) -> tuple[int, int] | None:
        return self.chunk, self.chunk - 1

    def admission_blocks(
        self, max_in_flight_tokens: int, max_model_len: int, block_size: int | None = None
    ) -> int:
        """``min(⌈(C + F − 1) / B⌉, ⌈L / B⌉)`` if the block size divides the chunk.

        Otherwise a chunk may start ``r`` tokens into a block, and a step from its last token touches
        ``⌈(r + C + F − 1) / B⌉`` blocks. ``r`` repeats every ``B / gcd(B, C)`` chunks, so it is enough to try the
        last ``B / gcd(B, C)`` chunks within ``L`` and the step that ends at ``L``.
        """
        size = block_size or self.block_size
        step = min(max(max_in_flight_tokens, 1), max_model_len)
        last = max_model_len - step
        chunks = (last + 1) // self.chunk
        starts = range(max(chunks - size // gcd(size, self.chunk), 0), chunks)
        ends = [(k + 1) * self.chunk - 1 for k in starts]
        return max(self.step_blocks(n, n + step, size) for n in (*ends, last))
