"""The schema of ``kvhybrid replay``: every key of its config, with type and limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvhybrid.planning.layouts.base import MemoryLayout
from kvhybrid.planning.layouts.padded import PaddedLayout
from kvhybrid.replay.arrivals import ArrivalProcess
from kvhybrid.replay.bounds import LEVELS
from kvhybrid.replay.cost import CostModel, LinearCost
from kvhybrid.replay.layers import CacheSettings
from kvhybrid.replay.trace import Trace
from kvhybrid.settings.cache import EvictionSettings, PoolSettings, RetentionSettings, SchedulerSettings
from kvhybrid.settings.values import MOST_BLOCKS, at_least
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
    bounds: str = "min"
    """The tightest upper bound of the hit rate that is computed: one of `kvhybrid.replay.bounds.LEVELS`."""
    curve: Any = False
    """A miss-ratio curve: true for sizes from the smallest possible pool to an unlimited one, or a list of
    ``pool.num_blocks``."""

    def __post_init__(self) -> None:
        at_least("sample_every", self.sample_every, 1)
        if self.bounds not in LEVELS:
            raise ValueError(f"bounds must be one of {', '.join(LEVELS)}, found {self.bounds!r}")
        if type(self.curve) is bool:
            return
        if not isinstance(self.curve, (list, tuple)) or not self.curve:
            raise ValueError(f"curve must be true, false or a list of pool.num_blocks, found {self.curve!r}")
        for size in self.curve:
            if type(size) is not int:
                raise ValueError(f"curve must have whole numbers of blocks, found {size!r}")
            at_least("curve", size, 2, MOST_BLOCKS)
