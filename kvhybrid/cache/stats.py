"""The stats of a cache, per group and per step, and the metric names that trackers get them under."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from operator import add, attrgetter


@dataclass(frozen=True)
class MissCauses:
    """Why tokens were not hit: every token that a request asks of a group is a hit or has exactly one cause.

    Each field is a number of tokens.
    """

    other_group: int = 0
    """The group had them; another could not resume there."""
    last_token: int = 0
    """They were cached up to the prompt's end, whose last token must be computed."""
    draft_drop: int = 0
    """A draft model recomputes the last unit of a hit."""
    granularity: int = 0
    """Hits end on block boundaries that all groups share; these lie between two of them, or after the last."""
    not_retained: int = 0
    """They were computed before, and neither retention nor the live set kept a block of them here."""
    evicted: int = 0
    """They were cached here once and lost their key."""
    never_seen: int = 0
    """They were never computed before, or too long ago to be remembered."""
    no_room: int = 0
    """They were hit, but the request was admitted without: copying a shared block needs one more block."""
    opted_out: int = 0
    """The request or the group does not read the cache, or the request got them after its look-up."""

    def __iter__(self) -> Iterator[int]:
        return iter(_counts(self))

    def __add__(self, other: MissCauses) -> MissCauses:
        return MissCauses(*map(add, _counts(self), _counts(other)))

    @property
    def total(self) -> int:
        return sum(self)

    def by_name(self) -> dict[str, int]:
        return asdict(self)


_counts: Callable[[MissCauses], tuple[int, ...]] = attrgetter(*(field.name for field in fields(MissCauses)))


@dataclass(frozen=True, kw_only=True)
class LookupStats:
    """Tokens that requests asked one cache group for, and hits, since the start."""

    tokens_asked: int
    """Tokens of the requests that were admitted."""
    tokens_hit: int
    """Tokens of the joint hits that were adopted: the same for every group of one cache."""
    tokens_own_hit: int
    """Tokens that this group alone could have given."""
    misses: MissCauses | None = None
    """Why tokens were not hit, if that is tracked: with the hits they add up to the tokens asked."""

    @property
    def hit_rate(self) -> float:
        return self.tokens_hit / self.tokens_asked if self.tokens_asked else 0.0

    @property
    def own_hit_rate(self) -> float:
        return self.tokens_own_hit / self.tokens_asked if self.tokens_asked else 0.0

    def metrics(self) -> dict[str, float]:
        return {
            "hit_rate": self.hit_rate,
            "own_hit_rate": self.own_hit_rate,
            "tokens_asked": self.tokens_asked,
            "tokens_hit": self.tokens_hit,
            "tokens_own_hit": self.tokens_own_hit,
        }


@dataclass(frozen=True, kw_only=True)
class GroupStats(LookupStats):
    """Stats of one cache group: its look-ups at first admissions, and its blocks at the moment."""

    name: str
    readmitted: LookupStats
    """The look-ups of requests that were admitted again, after a preemption."""
    blocks_live: int
    """Blocks that requests hold."""
    blocks_cached: int
    """Blocks with a key, held or free."""
    blocks_reusable: int
    """Blocks with a key that no request holds: free, and can still be hit."""
    evictions: int
    """Blocks that lost their key to a new owner, from the start."""
    blocks_unused: int = 0
    """Free blocks without a key that only this group can take; 0 where all groups share one pool."""

    def metrics(self) -> dict[str, float]:
        """``group/<name>/<metric>`` for trackers."""
        values: dict[str, float] = {
            **super().metrics(),
            "blocks_live": self.blocks_live,
            "blocks_cached": self.blocks_cached,
            "blocks_reusable": self.blocks_reusable,
            "evictions": self.evictions,
            "blocks_unused": self.blocks_unused,
        }
        if self.misses is not None:
            values.update({f"miss/{cause}": tokens for cause, tokens in self.misses.by_name().items()})
        values.update({f"readmitted/{metric}": value for metric, value in self.readmitted.metrics().items()})
        return {f"group/{self.name}/{metric}": value for metric, value in values.items()}


@dataclass(frozen=True)
class CacheStats:
    """The cache as a whole: one entry per group, and the pool that they share."""

    groups: tuple[GroupStats, ...]
    num_blocks: int
    """Usable blocks of the shared pool, the null block not counted; with several pools, units of memory."""
    blocks_free: int
    """Those that no request holds, those with a key included."""
    usage: float
    """Share of the usable blocks that requests hold, 0 to 1."""
    refusals: int
    """Calls for slots that got none."""
    refusals_by_reason: Mapping[str, int] = field(default_factory=dict)
    """By the values of `kvhybrid.cache.coordinators.allocation.Refusal`."""

    @property
    def hit_rate(self) -> float:
        """Share of the tokens asked at first admissions that the cache as a whole gave, 0 to 1."""
        return max((group.hit_rate for group in self.groups), default=0.0)

    @property
    def readmitted_hit_rate(self) -> float:
        """As `hit_rate`, of requests that were admitted again after a preemption."""
        return max((group.readmitted.hit_rate for group in self.groups), default=0.0)

    @property
    def readmitted_tokens(self) -> int:
        """Tokens that those requests asked for."""
        return max((group.readmitted.tokens_asked for group in self.groups), default=0)

    def metrics(self) -> dict[str, float]:
        merged: dict[str, float] = {
            "readmitted/hit_rate": self.readmitted_hit_rate,
            "readmitted/tokens_asked": self.readmitted_tokens,
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
    """Requests that run, and that wait, after the step."""
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
