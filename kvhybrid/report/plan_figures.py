"""The figures of a plan in short, as every run and replay shows them."""

from __future__ import annotations

from dataclasses import dataclass

from kvhybrid.planning.plan import CachePlan


@dataclass(frozen=True)
class PlanFigures:
    """What a pool holds. Sizes are in bytes, and those of one device."""

    num_blocks: int
    """The null block included."""
    bytes_per_block: int
    pool_bytes: int
    max_model_len: int
    """Tokens of the longest request."""
    capacity_tokens: int
    """Tokens that fit in requests of ``max_model_len``."""
    concurrency: float
    """Requests of ``max_model_len`` that fit."""
    padding_share: float
    """Share of the pool that is padding, 0 to 1, if all groups hold equally many blocks."""

    @classmethod
    def from_plan(cls, plan: CachePlan) -> PlanFigures:
        return cls(
            num_blocks=plan.num_blocks,
            bytes_per_block=plan.bytes_per_block,
            pool_bytes=plan.memory_bytes,
            max_model_len=plan.max_model_len,
            capacity_tokens=plan.capacity_tokens,
            concurrency=plan.concurrency,
            padding_share=plan.padding_share,
        )

    def __str__(self) -> str:
        return (
            f"planned: {self.num_blocks:,} blocks of {self.bytes_per_block:,} bytes, "
            f"{self.capacity_tokens:,} tokens, {self.concurrency:.2f} requests of {self.max_model_len:,} tokens, "
            f"{self.padding_share:.1%} padding"
        )
