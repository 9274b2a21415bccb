"""Sizing: the number of blocks of a request, and the longest request that fits in a pool."""

from __future__ import annotations

from kvhybrid.cache.config import KVCacheConfig


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
    """The longest request, at most ``max_model_len`` tokens, that fits in the pool; 0 if not even one token fits.

    Found by bisection: a longer request never takes fewer blocks.
    """
    low, high = 0, max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        needed = sum(request_blocks(config, middle, max_in_flight_tokens, max_encoder_tokens))
        if needed <= config.num_blocks - 1:
            low = middle
        else:
            high = middle - 1
    return low
