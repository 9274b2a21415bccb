"""Multi-head latent attention: one latent vector per token replaces its keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvhybrid.specs.base import PagePart
from kvhybrid.specs.full import FullAttentionSpec


@dataclass(frozen=True, kw_only=True)
class MLAAttentionSpec(FullAttentionSpec):
    """Full attention over latents of ``head_size`` elements; there is no value part (DeepSeek-V2)."""

    kind: ClassVar[str] = "mla"

    def page_parts(self) -> tuple[PagePart, ...]:
        return (PagePart("latent", (self.block_size, self.num_kv_heads, self.head_size), self.dtype),)
