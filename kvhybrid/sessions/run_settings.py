"""The schema of ``kvhybrid run``: every key that a config may have, its type and its limits.

The values that ship lie in ``conf/``; Hydra merges them into these classes, which is why none is frozen. An
object of `RunSettings` can also be built in Python and handed to `kvhybrid.sessions.run.run`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvhybrid.engine.quality import QualitySettings
from kvhybrid.settings.backends import BackendSettings
from kvhybrid.settings.cache import EvictionSettings, PoolSettings, RetentionSettings, SchedulerSettings
from kvhybrid.settings.model import (
    BambaSettings,
    CheckpointSettings,
    Gemma3nSettings,
    Gemma3Settings,
    GptOssSettings,
    JambaSettings,
    Llama4Settings,
    Qwen3NextSettings,
)
from kvhybrid.settings.values import MISSING, MOST_SEED, at_least


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
    """All of one run. ``model``, ``workload`` and the entries of ``tracking`` are open: objects of
    `ModelSettings`, `kvhybrid.workloads.Workload` and `kvhybrid.tracking.Tracker`."""

    model: Any = MISSING
    workload: Any = MISSING
    pool: PoolSettings = field(default_factory=PoolSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    eviction: EvictionSettings = field(default_factory=EvictionSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    quality: QualitySettings = field(default_factory=QualitySettings)
    backends: BackendSettings = field(default_factory=BackendSettings)
    tracking: dict[str, Any] = field(default_factory=dict)
    name: str = "run"
    objective: str = "hit_rate"
    """The figure of the summary that a sweeper such as optuna is told."""
    seed: int = 0
    device: str = "cpu"
    record: str | None = None
    """A file to write the cache manager's calls to, as a scenario."""

    def __post_init__(self) -> None:
        at_least("seed", self.seed, 0, MOST_SEED)


def schema_nodes() -> Mapping[tuple[str | None, str], type[Any]]:
    """(Hydra group, name) to the class that checks it. YAML files name these first in their defaults list."""
    from kvhybrid.tracking import JsonLinesTracker, WandbTracker
    from kvhybrid.workloads import FewShot, MultiTurn, Prompts, Random, SharedPrefix, SourceCode

    return {
        (None, "run_schema"): RunSettings,
        ("schema/model", "gemma3"): Gemma3Settings,
        ("schema/model", "gemma3n"): Gemma3nSettings,
        ("schema/model", "jamba"): JambaSettings,
        ("schema/model", "bamba"): BambaSettings,
        ("schema/model", "llama4"): Llama4Settings,
        ("schema/model", "gpt_oss"): GptOssSettings,
        ("schema/model", "qwen3_next"): Qwen3NextSettings,
        ("schema/model", "checkpoint"): CheckpointSettings,
        ("schema/workload", "shared_prefix"): SharedPrefix,
        ("schema/workload", "multi_turn"): MultiTurn,
        ("schema/workload", "few_shot"): FewShot,
        ("schema/workload", "prompts"): Prompts,
        ("schema/workload", "random"): Random,
        ("schema/workload", "source_code"): SourceCode,
        ("schema/tracking", "jsonl"): JsonLinesTracker,
        ("schema/tracking", "wandb"): WandbTracker,
    }
