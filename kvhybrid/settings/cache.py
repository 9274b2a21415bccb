"""The part of the schema for pool, scheduler, eviction and retention."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from kvhybrid.settings.values import MOST_BLOCKS, at_least

_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
MOST_BYTES = 1 << 50


def read_bytes_of(key: str, text: str) -> int:
    """A size such as ``40GiB`` in bytes. Raises ValueError, which names ``key``, for anything else."""
    matched = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if matched is None or matched[2].upper() not in _BYTES:
        raise ValueError(f"{key} must be a number with B, KB, MB, GB, KiB, MiB or GiB, found {text!r}")
    return int(Decimal(matched[1]) * _BYTES[matched[2].upper()])


@dataclass(kw_only=True)
class PoolSettings:
    """The block pool. Exactly one of ``num_blocks`` and ``memory`` is given."""

    block_size: int = 16
    num_blocks: int | None = 1024
    memory: str | None = None
    """A number of bytes, a number with B, KB, MB, GB, KiB, MiB or GiB, or ``auto``: what a GPU has left."""
    utilization: float = 0.92
    """With ``memory=auto``, the share of the GPU for weights, activations and cache together."""
    reserve: str = "0B"
    """With ``memory=auto``, what else to leave free."""
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
            at_least("pool.num_blocks", self.num_blocks, 2, MOST_BLOCKS)
        if self.memory_bytes is not None:
            at_least("pool.memory in bytes", self.memory_bytes, 1, MOST_BYTES)
        if not 0 < self.utilization <= 1:
            raise ValueError(f"pool.utilization must lie in (0, 1], found {self.utilization}")
        at_least("pool.reserve in bytes", self.reserve_bytes, 0, MOST_BYTES)

    @property
    def memory_is_measured(self) -> bool:
        """Whether the GPU decides about ``memory``."""
        return self.memory == "auto"

    @property
    def memory_bytes(self) -> int | None:
        """``memory`` in bytes, None if it is measured. Raises ValueError if it is not a size."""
        if self.memory is None or self.memory_is_measured:
            return None
        return read_bytes_of("pool.memory", self.memory)

    @property
    def reserve_bytes(self) -> int:
        """``reserve`` in bytes. Raises ValueError if it is not a size."""
        return read_bytes_of("pool.reserve", self.reserve)


@dataclass(kw_only=True)
class SchedulerSettings:
    """The scheduler and its limits."""

    kind: str = "default"
    """A registered name or ``module:Class``."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Additional parameters of this scheduler. In a config, they are on the same level as the other keys."""
    max_batched_tokens: int = 512
    max_num_seqs: int = 16
    watermark: float = 0.0
    max_model_len: int | None = None
    """Maximum tokens of a request; None: those of the workload's longest request."""

    def __post_init__(self) -> None:
        at_least("scheduler.max_batched_tokens", self.max_batched_tokens, 1)
        at_least("scheduler.max_num_seqs", self.max_num_seqs, 1)
        if not 0 <= self.watermark <= 1:
            raise ValueError(f"scheduler.watermark must lie in [0, 1], found {self.watermark}")
        if self.max_model_len is not None:
            at_least("scheduler.max_model_len", self.max_model_len, 1)


@dataclass(kw_only=True)
class EvictionSettings:
    """Which cached free block is reused first."""

    kind: str = "lru"
    """A registered order of reuse or ``module:Class``."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Parameters of this order. In a config, they are on the same level as ``kind``."""


@dataclass(kw_only=True)
class RetentionSettings:
    """Which blocks stay reusable in groups of windows and states."""

    kind: str = "interval"
    """A registered retention policy or ``module:Class``."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Additional parameters of this policy. In a config, they are on the same level as the other keys."""
    interval: int | None = None

    def __post_init__(self) -> None:
        if self.interval is not None:
            at_least("retention.interval", self.interval, 0)


def _yaml(value: object) -> str:
    return "null" if value is None else str(value)
