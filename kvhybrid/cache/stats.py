"""Figures that everybody sees: per group and per step, under names defined once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvhybrid.cache.miss_causes import MissCauses


@dataclass(frozen=True)
class GroupStats:
    """Counters of one cache group. Token and eviction counts run from the start; block counts are of now."""

    name: str
    tokens_asked: int
    """Tokens of the prompts that were looked up and admitted."""
    tokens_hit: int
    """Tokens of the joint hits that were adopted: the same for every group of one cache."""
    tokens_own_hit: int
    """Tokens that this group alone could have given."""
    blocks_live: int
    """Blocks that requests hold."""
    blocks_cached: int
    """Blocks with a key, held or free."""
    blocks_reusable: int
    """Blocks with a key that nobody holds: free, and still good for a hit."""
    evictions: int
    """Blocks that lost their key to a new owner."""
    misses: MissCauses | None = None
    """Why tokens were not hit, when that is tracked: with the hits they add up to the tokens asked."""

    @property
    def hit_rate(self) -> float:
        return self.tokens_hit / self.tokens_asked if self.tokens_asked else 0.0

    @property
    def own_hit_rate(self) -> float:
        return self.tokens_own_hit / self.tokens_asked if self.tokens_asked else 0.0

    def metrics(self) -> dict[str, float]:
        """``group/<name>/<figure>`` for trackers."""
        figures: dict[str, float] = {
            "hit_rate": self.hit_rate,
            "own_hit_rate": self.own_hit_rate,
            "tokens_asked": self.tokens_asked,
            "tokens_hit": self.tokens_hit,
            "tokens_own_hit": self.tokens_own_hit,
            "blocks_live": self.blocks_live,
            "blocks_cached": self.blocks_cached,
            "blocks_reusable": self.blocks_reusable,
            "evictions": self.evictions,
        }
        if self.misses is not None:
            figures.update({f"miss/{cause}": tokens for cause, tokens in self.misses.by_name().items()})
        return {f"group/{self.name}/{figure}": value for figure, value in figures.items()}


@dataclass(frozen=True)
class CacheStats:
    """The cache as a whole: one entry per group, and the pool that they share."""

    groups: tuple[GroupStats, ...]
    num_blocks: int
    """Usable blocks, the null block not counted."""
    blocks_free: int
    usage: float
    """Share of the usable blocks that requests hold, 0 to 1."""
    refusals: int
    """Calls for slots that got none."""
    refusals_by_reason: Mapping[str, int] = field(default_factory=dict)
    """``no_blocks`` for the step, ``whole_request`` could never be finished, ``not_written_yet`` by this step."""

    def metrics(self) -> dict[str, float]:
        merged: dict[str, float] = {
            "pool/usage": self.usage,
            "pool/blocks_free": self.blocks_free,
            "pool/num_blocks": self.num_blocks,
            "pool/refusals": self.refusals,
        }
        merged.update({f"pool/refusals/{reason}": count for reason, count in self.refusals_by_reason.items()})
        for group in self.groups:
            merged.update(group.metrics())
        return merged


@dataclass(frozen=True)
class StepStats:
    """One engine step: what it scheduled, how long it took, and the cache after it."""

    step: int
    num_scheduled_tokens: int
    num_new_tokens: int
    """Tokens sampled in this step."""
    num_running: int
    num_waiting: int
    preemptions: int
    """Since the start."""
    seconds: float
    cache: CacheStats

    def metrics(self) -> dict[str, float]:
        return {
            "step/scheduled_tokens": self.num_scheduled_tokens,
            "step/new_tokens": self.num_new_tokens,
            "step/running": self.num_running,
            "step/waiting": self.num_waiting,
            "step/preemptions": self.preemptions,
            "step/seconds": self.seconds,
            "step/tokens_per_second": self.num_scheduled_tokens / self.seconds if self.seconds else 0.0,
            **self.cache.metrics(),
        }
