"""The schema of ``kvhybrid run``: every key that a config may have, its type and its limits.

The values that ship lie in ``conf/``; Hydra merges them into these classes, which is why none is frozen. An
object of `RunSettings` can also be built in Python and handed to `kvhybrid.run.run`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvhybrid.backend_settings import BackendSettings
from kvhybrid.model_settings import (
    BambaSettings,
    CheckpointSettings,
    Gemma3nSettings,
    Gemma3Settings,
    GptOssSettings,
    JambaSettings,
    Llama4Settings,
    Qwen3NextSettings,
)
from kvhybrid.quality import QualitySettings
from kvhybrid.schema_values import MISSING, at_least

_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(kw_only=True)
class PoolSettings:
    """The block pool. Exactly one of ``num_blocks`` and ``memory`` is given."""

    block_size: int = 16
    num_blocks: int | None = 512
    memory: str | None = None
    """A number of bytes, or a number with B, KB, MB, GB, KiB, MiB or GiB."""
    hash_block_size: int | None = None
    enable_prefix_caching: bool = True

    def __post_init__(self) -> None:
        at_least("pool.block_size", self.block_size, 1)
        if self.hash_block_size is not None:
            at_least("pool.hash_block_size", self.hash_block_size, 1)
        if (self.num_blocks is None) == (self.memory is None):
            raise ValueError(
                "give one of pool.num_blocks and pool.memory, "
                f"found pool.num_blocks={_yaml(self.num_blocks)} pool.memory={_yaml(self.memory)}"
            )
        if self.num_blocks is not None:
            at_least("pool.num_blocks", self.num_blocks, 2)
        _ = self.memory_bytes

    @property
    def memory_bytes(self) -> int | None:
        """``memory`` in bytes. Raises ValueError where it cannot be read."""
        if self.memory is None:
            return None
        matched = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", self.memory)
        if matched is None or matched[2].upper() not in _BYTES:
            raise ValueError(
                f"pool.memory must be a number with B, KB, MB, GB, KiB, MiB or GiB, found {self.memory!r}"
            )
        return int(float(matched[1]) * _BYTES[matched[2].upper()])


@dataclass(kw_only=True)
class SchedulerSettings:
    """How much a step may do."""

    max_batched_tokens: int = 512
    max_num_seqs: int = 16
    watermark: float = 0.0
    max_model_len: int | None = None
    """Tokens; the longest request of the workload where not given."""

    def __post_init__(self) -> None:
        at_least("scheduler.max_batched_tokens", self.max_batched_tokens, 1)
        at_least("scheduler.max_num_seqs", self.max_num_seqs, 1)
        if not 0 <= self.watermark < 1:
            raise ValueError(f"scheduler.watermark must lie in [0, 1), found {self.watermark}")
        if self.max_model_len is not None:
            at_least("scheduler.max_model_len", self.max_model_len, 1)


@dataclass(kw_only=True)
class EvictionSettings:
    """Which cached free block is given away first."""

    order: str = "lru"


@dataclass(kw_only=True)
class RetentionSettings:
    """Which blocks stay hittable in groups that may be thinned out."""

    interval: int | None = None

    def __post_init__(self) -> None:
        if self.interval is not None:
            at_least("retention.interval", self.interval, 0)


@dataclass(kw_only=True)
class SamplingSettings:
    """How the next token is chosen."""

    temperature: float = 0.0
    top_k: int = 0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"sampling.temperature must be 0 or more, found {self.temperature}")
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
    seed: int = 0
    device: str = "cpu"
    record: str | None = None
    """A file to write the cache manager's calls to, as a scenario."""


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


def _yaml(value: object) -> str:
    return "null" if value is None else str(value)
