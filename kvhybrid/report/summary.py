"""Final statistics of a run, and a description of its groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from kvhybrid.cache.config import KVCacheConfig
from kvhybrid.cache.stats import CacheStats
from kvhybrid.engine.quality import Quality
from kvhybrid.report.plan_figures import PlanFigures

Figure = TypeVar("Figure")


@dataclass(frozen=True)
class GroupDescription:
    """Description of a cache group; its statistics are in `CacheStats` under the same name."""

    name: str
    kind: str
    """The registered name of its spec."""
    num_layers: int
    block_size: int
    """Tokens per block."""


@dataclass(frozen=True)
class RunSummary:
    """The statistics of a whole run."""

    name: str
    status: str
    """done, interrupted (by a signal), refused (invalid input) or failed (any other error)."""
    groups: tuple[GroupDescription, ...]
    cache: CacheStats
    requests: int
    """Requests that completed."""
    prompt_tokens: int
    """Tokens of all prompts, cached or not."""
    output_tokens: int
    steps: int
    preemptions: int
    seconds: float
    folder: Path
    overrides: tuple[str, ...] = ()
    """Configuration overrides from the command line."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Errors of the requests that failed, by request id."""
    reason: str | None = None
    """Why the status is not done; empty if it is."""
    quality: Quality | None = None
    """How well the model predicted a text with this cache; None if not measured."""
    plan: PlanFigures | None = None
    """What the pool holds."""
    memory: Mapping[str, float] = field(default_factory=dict)
    """The figures of `kvhybrid.planning.memory_meter.MemoryMeter`."""

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that came from the cache at first admissions, 0 to 1."""
        return self.cache.hit_rate

    def figures(self) -> dict[str, Any]:
        """A flat mapping of metrics, for trackers."""
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
            **self.memory,
            **(self.quality.metrics() if self.quality else {}),
        }

    def objectives(self) -> dict[str, float]:
        """The figures that a sweep can optimize."""
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
            "plan": vars(self.plan) if self.plan else None,
            "tracking_failures": dict(tracking_failures),
        }


def merge_alike(figures: Iterable[tuple[str, str, Figure]]) -> list[tuple[str, str, Figure]]:
    """Merge groups of one kind with the same figure: (names, kind, figure), e.g. ``mamba.0 … .6``."""
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
