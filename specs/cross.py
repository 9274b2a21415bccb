"""Cross attention: a token reads every token of the encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from kvhybrid.specs.base import AttentionSpec


@dataclass(frozen=True, kw_only=True)
class CrossAttentionSpec(AttentionSpec):
    """The live set is all ``p`` encoder tokens, independent of the decoder's position.

    Positions of this spec count encoder tokens. The blocks are allocated once, when the request is admitted, and
    never shared: requests with equal decoder tokens may have different encoder inputs.
    """

    kind: ClassVar[str] = "cross"
    cacheable: ClassVar[bool] = False
    source: ClassVar[Literal["decoder", "encoder"]] = "encoder"

    def live(self, p: int) -> tuple[range, ...]:
        return (range(p),)

    def admission_blocks(
        self, max_in_flight_tokens: int, max_model_len: int, block_size: int | None = None
    ) -> int:
        return -(-max_model_len // (block_size or self.block_size))
