"""What is left of a run when it has ended: its figures, and what its groups are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from kvhybrid.cache.config import KVCacheConfig
from kvhybrid.cache.stats import CacheStats
from kvhybrid.engine.quality import Quality

Figure = TypeVar("Figure")


@dataclass(frozen=True)
class GroupDescription:
    """What a cache group is; its figures are in `CacheStats` under the same name."""

    name: str
    kind: str
    """The registered name of its spec."""
    num_layers: int
    block_size: int
    """Tokens per block."""


@dataclass(frozen=True)
class RunSummary:
    """The figures of a whole run."""

    name: str
    status: str
    """done, interrupted (by a signal), refused (a mistake in what was asked for) or failed (anything else)."""
    groups: tuple[GroupDescription, ...]
    cache: CacheStats
    requests: int
    """Requests that ended with all their tokens."""
    prompt_tokens: int
    """Tokens of all prompts that were sent, from the cache or not."""
    output_tokens: int
    steps: int
    preemptions: int
    seconds: float
    folder: Path
    overrides: tuple[str, ...] = ()
    """What the command line changed in the configuration."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """The requests that ended with an error, and the error."""
    reason: str | None = None
    """Why it was not done."""
    quality: Quality | None = None
    """How well the model predicted a text through this cache; None where that was not measured."""

    @property
    def hit_rate(self) -> float:
        """Share of the prompts' tokens that the cache as a whole gave at first admissions, 0 to 1."""
        return self.cache.hit_rate

    def figures(self) -> dict[str, Any]:
        """One flat mapping, for trackers."""
        return {
            "status": self.status,
            "hit_rate": self.hit_rate,
            "requests": self.requests,
            "failed_requests": len(self.failures),
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "steps": self.steps,
            "preemptions": self.preemptions,
            "seconds": self.seconds,
            "tokens_per_second": self.output_tokens / self.seconds if self.seconds else 0.0,
            **self.cache.metrics(),
            **(self.quality.metrics() if self.quality else {}),
        }

    def objectives(self) -> dict[str, float]:
        """Those figures that a sweep can optimize."""
        return {name: value for name, value in self.figures().items() if isinstance(value, (int, float))}

    def to_json(self, tracking_failures: Mapping[str, str]) -> dict[str, Any]:
        """The content of ``summary.json``."""
        return {
            "name": self.name,
            **self.figures(),
            **({"reason": self.reason} if self.reason else {}),
            "overrides": list(self.overrides),
            "request_failures": dict(self.failures),
            "groups": [vars(group) for group in self.groups],
            "tracking_failures": dict(tracking_failures),
        }


def merge_alike(figures: Iterable[tuple[str, str, Figure]]) -> list[tuple[str, str, Figure]]:
    """Groups of one kind with the same figure as one entry: (names, kind, figure), e.g. ``mamba.0 … .6``."""
    alike: dict[tuple[str, Figure], list[str]] = {}
    for name, kind, figure in figures:
        alike.setdefault((kind, figure), []).append(name)
    return [
        (names[0] if len(names) == 1 else f"{names[0]} … .{names[-1].rpartition('.')[2]}", kind, figure)
        for (kind, figure), names in alike.items()
    ]


def describe_groups(config: KVCacheConfig) -> tuple[GroupDescription, ...]:
    return tuple(
        GroupDescription(group.name, group.spec.kind, len(group.layers), config.block_size_of(group.spec))
        for group in config.groups
    )
