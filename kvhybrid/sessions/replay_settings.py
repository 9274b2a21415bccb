"""The schema of ``kvhybrid replay``: every key of its config, with type and limits."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvhybrid.planning.layouts.base import MemoryLayout
from kvhybrid.planning.layouts.padded import PaddedLayout
from kvhybrid.replay.arrivals import ArrivalProcess
from kvhybrid.replay.cost import CostModel, LinearCost
from kvhybrid.replay.layers import CacheSettings
from kvhybrid.replay.trace import Trace
from kvhybrid.settings.cache import EvictionSettings, PoolSettings, RetentionSettings, SchedulerSettings
from kvhybrid.settings.values import at_least
from kvhybrid.tracking.base import Tracker


@dataclass(kw_only=True)
class ReplaySettings:
    """The settings of one replay."""

    trace: Trace
    executor: ArrivalProcess
    cache: CacheSettings
    cost: CostModel = field(default_factory=LinearCost)
    pool: PoolSettings = field(default_factory=lambda: PoolSettings(block_size=512, num_blocks=16000))
    scheduler: SchedulerSettings = field(
        default_factory=lambda: SchedulerSettings(max_batched_tokens=8192, max_num_seqs=256)
    )
    eviction: EvictionSettings = field(default_factory=EvictionSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    layout: MemoryLayout = field(default_factory=PaddedLayout)
    tracking: dict[str, Tracker] = field(default_factory=dict)
    name: str = "replay"
    objective: str = "hit_rate"
    """The figure of the summary that is returned to a sweeper such as optuna."""
    sample_every: int = 100
    """Steps between two lines of ``metrics.jsonl``."""
    track_misses: bool = True
    """Count the causes of tokens that were not hit."""

    def __post_init__(self) -> None:
        at_least("sample_every", self.sample_every, 1)
