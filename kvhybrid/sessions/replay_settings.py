"""The schema of ``kvhybrid replay``: every key that a config may have, its type and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvhybrid.replay.cost import LinearCost
from kvhybrid.replay.executor import OneByOne, OpenLoop
from kvhybrid.replay.layers import CacheSettings
from kvhybrid.replay.mooncake import MooncakeTrace
from kvhybrid.settings.cache import EvictionSettings, PoolSettings, RetentionSettings, SchedulerSettings
from kvhybrid.settings.values import MISSING, at_least


@dataclass(kw_only=True)
class ReplaySettings:
    """All of one replay. ``trace``, ``executor`` and the entries of ``tracking`` are open: objects of
    `kvhybrid.replay.trace.Trace`, `kvhybrid.replay.executor.Executor` and `kvhybrid.tracking.Tracker`."""

    trace: Any = MISSING
    executor: Any = MISSING
    cache: CacheSettings = field(default_factory=CacheSettings)
    cost: LinearCost = field(default_factory=LinearCost)
    pool: PoolSettings = field(default_factory=PoolSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    eviction: EvictionSettings = field(default_factory=EvictionSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    tracking: dict[str, Any] = field(default_factory=dict)
    name: str = "replay"
    objective: str = "hit_rate"
    """The figure of the summary that a sweeper such as optuna is told."""
    sample_every: int = 100
    """Steps between two lines of metrics."""
    track_misses: bool = True
    """Name the cause of every token that was not hit."""

    def __post_init__(self) -> None:
        at_least("sample_every", self.sample_every, 1)


def schema_nodes() -> Mapping[tuple[str | None, str], type[Any]]:
    """(Hydra group, name) to the class that checks it, beside those of `run_settings.schema_nodes`."""
    return {
        (None, "replay_schema"): ReplaySettings,
        ("schema/trace", "mooncake"): MooncakeTrace,
        ("schema/executor", "one_by_one"): OneByOne,
        ("schema/executor", "open_loop"): OpenLoop,
    }
