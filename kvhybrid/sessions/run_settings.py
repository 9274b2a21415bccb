"""The schema of ``kvhybrid run``: every key of its config, with type and limits.

Default values are in ``conf/``. `RunSettings` can also be created in Python and passed to
`kvhybrid.sessions.run.run`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvhybrid.engine.quality import QualitySettings
from kvhybrid.planning.layouts.base import MemoryLayout
from kvhybrid.planning.layouts.padded import PaddedLayout
from kvhybrid.settings.backends import BackendSettings
from kvhybrid.settings.cache import EvictionSettings, PoolSettings, RetentionSettings, SchedulerSettings
from kvhybrid.settings.model import ModelSettings
from kvhybrid.settings.values import MOST_SEED, at_least
from kvhybrid.tracking.base import Tracker
from kvhybrid.workloads.base import Workload


@dataclass(kw_only=True)
class SamplingSettings:
    """How the next token is chosen."""

    temperature: float = 0.0
    top_k: int = 0

    def __post_init__(self) -> None:
        at_least("sampling.temperature", self.temperature, 0)
        at_least("sampling.top_k", self.top_k, 0)


@dataclass(kw_only=True)
class RunSettings:
    """The settings of one run."""

    model: ModelSettings
    workload: Workload
    pool: PoolSettings = field(default_factory=PoolSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    eviction: EvictionSettings = field(default_factory=EvictionSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    layout: MemoryLayout = field(default_factory=PaddedLayout)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    quality: QualitySettings = field(default_factory=QualitySettings)
    backends: BackendSettings = field(default_factory=BackendSettings)
    tracking: dict[str, Tracker] = field(default_factory=dict)
    name: str = "run"
    objective: str = "hit_rate"
    """The figure of the summary that is returned to a sweeper such as optuna."""
    seed: int = 0
    device: str = "cpu"
    record: str | None = None
    """A file to record the cache manager's calls in, as a scenario."""

    def __post_init__(self) -> None:
        at_least("seed", self.seed, 0, MOST_SEED)
