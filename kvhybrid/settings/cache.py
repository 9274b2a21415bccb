"""The part of the schema that says how large the cache is, what it keeps, and how much a step may do."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvhybrid.settings.values import at_least

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
        if not 0 <= self.watermark <= 1:
            raise ValueError(f"scheduler.watermark must lie in [0, 1], found {self.watermark}")
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


def _yaml(value: object) -> str:
    return "null" if value is None else str(value)
