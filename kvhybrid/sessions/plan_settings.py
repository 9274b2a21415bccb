"""The schema of ``kvhybrid plan``: every key of its config, with type and limits."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvhybrid.planning.layouts.base import MemoryLayout
from kvhybrid.planning.layouts.padded import PaddedLayout
from kvhybrid.settings.cache import MOST_BYTES, read_bytes_of
from kvhybrid.settings.model import ModelSettings
from kvhybrid.settings.values import MOST, MOST_SEED, at_least
from kvhybrid.specs.dtypes import BYTES

AUTO = "auto"


@dataclass(kw_only=True)
class PlanPool:
    """The memory of the cache if no GPU is given."""

    memory: str = "40GiB"

    def __post_init__(self) -> None:
        at_least("pool.memory in bytes", self.memory_bytes, 1, MOST_BYTES)

    @property
    def memory_bytes(self) -> int:
        return read_bytes_of("pool.memory", self.memory)


@dataclass(kw_only=True)
class PlanSettings:
    """The settings of one plan."""

    model: ModelSettings
    pool: PlanPool = field(default_factory=PlanPool)
    layout: MemoryLayout = field(default_factory=PaddedLayout)
    gpu: str | None = None
    utilization: float = 0.92
    weights: str = AUTO
    reserve: str = "2GiB"
    tp: int = 1
    block_size: int = 16
    kv_dtype: str = AUTO
    state_dtype: str = AUTO
    conv_inputs: str = "needed"
    max_model_len: int | None = None
    max_batched_tokens: int = 8192
    steps_in_flight: int = 1
    lengths: list[int] = field(default_factory=lambda: [1024, 8192, 32768, 131072])
    seed: int = 0
    """Used by small models with random weights; it does not affect the plan."""
    name: str = "plan"
    objective: str = "capacity_tokens"
    """The figure of the summary that is returned to a sweeper such as optuna."""

    def __post_init__(self) -> None:
        if not 0 < self.utilization <= 1:
            raise ValueError(f"utilization must lie in (0, 1], found {self.utilization}")
        for key in ("tp", "block_size", "max_batched_tokens", "steps_in_flight"):
            at_least(key, getattr(self, key), 1)
        if self.max_model_len is not None:
            at_least("max_model_len", self.max_model_len, 1)
        at_least("seed", self.seed, 0, MOST_SEED)
        for length in self.lengths:
            at_least("lengths: each", length, 1, MOST)
        for key in ("kv_dtype", "state_dtype"):
            if getattr(self, key) not in (AUTO, *BYTES):
                raise ValueError(
                    f"{key} must be {AUTO} or one of {', '.join(BYTES)}, found {getattr(self, key)!r}"
                )
        if self.conv_inputs not in ("needed", "stored"):
            raise ValueError(f"conv_inputs must be needed or stored, found {self.conv_inputs!r}")

    @property
    def reserve_bytes(self) -> int:
        return read_bytes_of("reserve", self.reserve)

    @property
    def weight_bytes(self) -> int | None:
        """Bytes of the weights on one GPU; None if they are computed from the number of parameters."""
        return None if self.weights == AUTO else read_bytes_of("weights", self.weights)
