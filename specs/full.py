"""Full attention: every earlier token is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvhybrid.specs.base import AttentionSpec, SuffixSpec


@dataclass(frozen=True, kw_only=True)
class FullAttentionSpec(AttentionSpec, SuffixSpec):
    """``live(p) = [0, p)``."""

    kind: ClassVar[str] = "full"
    prefix: ClassVar[bool] = True
    sub_block: ClassVar[bool] = True
    context_parallel: ClassVar[bool] = True

    def first(self, p: int) -> int:
        return 0

    def admission_blocks(
        self, max_in_flight_tokens: int, max_model_len: int, block_size: int | None = None
    ) -> int:
        return -(-max_model_len // (block_size or self.block_size))
