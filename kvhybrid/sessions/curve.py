"""Miss-ratio curves: the hit rate of a replay for a whole range of pool sizes, and the picture of it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.errors import InputError
from kvhybrid.replay.bounds.references import References
from kvhybrid.replay.bounds.relaxation import is_exact
from kvhybrid.replay.loop import ReplayLoop
from kvhybrid.replay.lru_curve import lru_hit_tokens
from kvhybrid.replay.trace import TraceRequest
from kvhybrid.report.curve_plot import plot_curve
from kvhybrid.run_folder import RunFolder
from kvhybrid.scheduling.base import CapacityError
from kvhybrid.sessions.replay_settings import ReplaySettings

BuildLoop: TypeAlias = Callable[[ReplaySettings, Sequence[TraceRequest]], ReplayLoop]
POINTS = 16
"""Sizes of a curve whose sizes are not given."""


@dataclass(frozen=True)
class Curve:
    """Hit rates by pool size."""

    num_blocks: tuple[int, ...]
    """The null block included, as ``pool.num_blocks``."""
    hit_rates: tuple[float | None, ...]
    """0 to 1; None where a request does not fit in the pool."""
    method: str
    """``one pass``, or ``one replay per size``."""

    def files(self, folder: RunFolder, title: str) -> Mapping[str, Callable[[], None]]:
        """Functions that write the curve's files to ``folder``, by file name."""

        def draw() -> None:
            with folder.atomic_path("curve.png") as partial:
                plot_curve(self.num_blocks, self.hit_rates, title, partial)

        points = [
            {"num_blocks": blocks, "hit_rate": rate}
            for blocks, rate in zip(self.num_blocks, self.hit_rates, strict=True)
        ]
        content = {"method": self.method, "points": points}
        return {"curve.json": lambda: folder.write_json("curve.json", content), "curve.png": draw}


def hit_rate_curve(
    settings: ReplaySettings,
    requests: Sequence[TraceRequest],
    cache: KVCacheManager,
    build_loop: BuildLoop,
) -> Curve | None:
    """The curve that ``settings.curve`` asks for; None if it is false. ``build_loop`` creates a replay.

    LRU with one full-attention group, one request at a time and unknown outputs takes one pass over the trace;
    everything else takes one replay per size, in as many processes as there are cores.
    """
    if settings.curve is False:
        return None
    if not cache.enable_caching:
        raise InputError(
            "curve: without prefix caching, nothing is hit; accepted: pool.enable_prefix_caching=true"
        )
    sizes = _sizes(requests, settings, cache) if settings.curve is True else sorted({*settings.curve})
    asked = sum(request.num_prompt_tokens for request in requests)
    if _is_one_pass(settings, cache) and not any(request.output_identified for request in requests):
        usable = [size - 1 for size in sizes]
        found = lru_hit_tokens(requests, cache.config.hash_unit, settings.trace.part_tokens, usable)
        rates = {size: hit / asked for size, hit in zip(sizes, found.tokens.tolist(), strict=True) if hit >= 0}
        unsure = [size for size, exact in zip(sizes, found.exact.tolist(), strict=True) if not exact]
        if unsure:
            again = zip(unsure, _replayed(settings, requests, unsure, build_loop), strict=True)
            rates |= {size: rate for size, rate in again if rate is not None}
        method = f"one pass, and a replay for {len(unsure)} sizes" if unsure else "one pass"
        return Curve(tuple(sizes), tuple(map(rates.get, sizes)), method)
    return Curve(tuple(sizes), tuple(_replayed(settings, requests, sizes, build_loop)), "one replay per size")


def _is_one_pass(settings: ReplaySettings, cache: KVCacheManager) -> bool:
    return (
        is_exact(cache.config)
        and settings.eviction.kind == "lru"
        and settings.executor.one_at_a_time
        and not settings.scheduler.watermark
        and cache.config.hash_unit == cache.config.scheduler_block_size
    )


def _sizes(requests: Sequence[TraceRequest], settings: ReplaySettings, cache: KVCacheManager) -> list[int]:
    """`POINTS` sizes at equal ratios: from one that the longest request fits in to one that holds everything."""
    config = cache.config
    references = References.of_requests(requests, config.hash_unit, settings.trace.part_tokens)
    blocks = sum(-(-config.hash_unit // size) for size in config.block_sizes) or 1
    distinct = len(np.unique(references.numbers))
    outputs = sum(request.num_output_tokens for request in requests) // config.hash_unit
    longest = max(request.num_tokens for request in requests)
    least = 2 + sum(-(-longest // size) for size in config.block_sizes)
    most = max(least + 1, least + (distinct + outputs) * blocks)
    return sorted({round(size) for size in np.geomspace(least, most, POINTS).tolist()})


def _replayed(
    settings: ReplaySettings, requests: Sequence[TraceRequest], sizes: Sequence[int], build_loop: BuildLoop
) -> list[float | None]:
    processes = min(len(sizes), os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _start, (settings, requests, build_loop)) as pool:
        return list(pool.map(_hit_rate, sizes))


_GIVEN: list[tuple[ReplaySettings, Sequence[TraceRequest], BuildLoop]] = []
"""What a worker process replays."""


def _start(settings: ReplaySettings, requests: Sequence[TraceRequest], build_loop: BuildLoop) -> None:
    _GIVEN.append((settings, requests, build_loop))


def _hit_rate(num_blocks: int) -> float | None:
    """The hit rate of a replay with ``num_blocks`` blocks; None if a request does not fit."""
    settings, requests, build_loop = _GIVEN[-1]
    pool = replace(settings.pool, num_blocks=num_blocks, memory=None)
    try:
        loop = build_loop(replace(settings, pool=pool, tracking={}, track_misses=False), requests)
        while loop.advance(10_000):
            pass
    except (CapacityError, InputError):
        return None
    return loop.scheduler.cache.stats().hit_rate
