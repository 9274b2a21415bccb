"""Sizing: the number of blocks of a request, and the longest request that fits in a pool."""

from __future__ import annotations

from collections.abc import Callable

from kvhybrid.cache.config import KVCacheConfig
from kvhybrid.planning.layouts.base import Arrangement, MemoryLayout


def request_blocks(
    config: KVCacheConfig,
    max_model_len: int,
    max_in_flight_tokens: int,
    max_encoder_tokens: int | None = None,
) -> tuple[int, ...]:
    """Per group, the most blocks that one request of ``max_model_len`` tokens holds at once.

    Groups of encoder tokens are sized by ``max_encoder_tokens``, by default ``max_model_len``.
    """
    encoder = max_model_len if max_encoder_tokens is None else max_encoder_tokens
    return tuple(
        group.spec.admission_blocks(
            max_in_flight_tokens,
            encoder if group.spec.source == "encoder" else max_model_len,
            config.block_size_of(group.spec),
        )
        for group in config.groups
    )


def longest_model_len(
    config: KVCacheConfig,
    max_model_len: int,
    max_in_flight_tokens: int,
    max_encoder_tokens: int | None = None,
) -> int:
    """The longest request, at most ``max_model_len`` tokens, that fits in the pool; 0 if no token does."""

    def fits(length: int) -> bool:
        blocks = request_blocks(config, length, max_in_flight_tokens, max_encoder_tokens)
        if config.pools is not None:
            return config.pools.has_room(blocks)
        return sum(blocks) <= config.num_blocks - 1

    return _longest(fits, max_model_len)


def longest_in(
    layout: MemoryLayout,
    arrangement: Arrangement,
    config: KVCacheConfig,
    memory_bytes: int,
    max_model_len: int,
    max_in_flight_tokens: int,
    max_encoder_tokens: int | None,
) -> int:
    """As `longest_model_len`, of a memory that ``layout`` divides for the length in question."""

    def fits(length: int) -> bool:
        blocks = request_blocks(config, length, max_in_flight_tokens, max_encoder_tokens)
        return layout.bytes_for(arrangement, blocks) <= memory_bytes

    return _longest(fits, max_model_len)


def _longest(fits: Callable[[int], bool], limit: int) -> int:
    """The highest number up to ``limit`` that fits, by bisection: a longer request never takes fewer blocks."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
