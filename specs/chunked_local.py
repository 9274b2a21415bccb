"""Chunked local attention: a token reads the tokens of its own chunk."""

from __future__ import annotations

from dataclasses import dataclass
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

    def admission_blocks(
        self, max_in_flight_tokens: int, max_model_len: int, block_size: int | None = None
    ) -> int:
        """``min(⌈(C + F − 1) / B⌉, ⌈L / B⌉)``, exact where the chunk is a multiple of the block."""
        size = block_size or self.block_size
        if self.chunk % size:
            return super().admission_blocks(max_in_flight_tokens, max_model_len, size)
        spread = self.chunk - 1 + min(max_in_flight_tokens, max_model_len)
        return min(-(-spread // size), -(-max_model_len // size))
