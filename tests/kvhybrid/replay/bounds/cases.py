"""Random small traces and caches, and what a real replay hits on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvhybrid.replay.arrivals import OneByOne
from kvhybrid.replay.layers import CacheSettings, LayerSettings
from kvhybrid.replay.loop import ReplayLoop
from kvhybrid.replay.mooncake import MooncakeTrace
from kvhybrid.replay.prefix_numbers import PrefixNumbers, Segment
from kvhybrid.replay.trace import TraceRequest
from kvhybrid.sessions.replay import build_loop
from kvhybrid.sessions.replay_settings import ReplaySettings
from kvhybrid.settings.cache import EvictionSettings, PoolSettings, RetentionSettings, SchedulerSettings

BLOCK = 4
SIZES = {"num_kv_heads": 1, "head_size": 1}
LAYERS: dict[str, list[LayerSettings]] = {
    "full": [LayerSettings(spec="full", fields=SIZES)],
    "two full": [LayerSettings(spec="full", fields=SIZES), LayerSettings(spec="mla", fields=SIZES)],
    "window": [
        LayerSettings(spec="full", fields=SIZES),
        LayerSettings(spec="sliding_window", fields={"window": 6}),
    ],
    "chunk": [LayerSettings(spec="full", fields=SIZES), LayerSettings(spec="chunked_local", fields={"chunk": 8})],
    "only window": [LayerSettings(spec="sliding_window", fields={"window": 6})],
    "state": [
        LayerSettings(spec="full", fields=SIZES),
        LayerSettings(spec="mamba", fields={"shapes": [[2]], "dtypes": ["float32"]}),
    ],
}


@dataclass(frozen=True)
class Case:
    """A trace in parts of one block, the layers of a cache, and its usable blocks."""

    requests: list[TraceRequest]
    layers: list[LayerSettings]
    blocks: int
    eviction: dict[str, Any] = field(default_factory=dict)


def random_requests(random: np.random.Generator, count: int, known: float) -> list[TraceRequest]:
    """Prompts that branch off a few long texts; a share of ``known`` has an answer that others have too."""
    numbers = PrefixNumbers()
    found = []
    for index in range(count):
        text, start = int(random.integers(5)), int(random.integers(1, 25))
        tail = int(random.integers(1, 9)) if random.random() < 0.5 else 0
        branch = int(random.integers(3))
        prompt = [Segment(("text", text), start), Segment(("tail", text, start, branch), tail)]
        output = int(random.integers(1, 10)) if random.random() < 0.3 else 1
        answer = Segment(("answer", text, start, tail, branch), output)
        identified = bool(random.random() < known)
        ids = numbers.of_segments([*prompt, answer] if identified else prompt, BLOCK)
        found.append(TraceRequest(f"r{index}", 0.0, start + tail, output, ids, output_identified=identified))
    return found


def random_case(seed: int, layers: str, known: float = 0.5) -> Case:
    random = np.random.default_rng(seed)
    requests = random_requests(random, int(random.integers(6, 16)), known)
    groups = LAYERS[layers]
    longest = max(-(-r.num_tokens // BLOCK) for r in requests)
    blocks = longest * len(groups) + int(random.integers(0, 8))
    return Case(requests, groups, blocks)


def loop_of(case: Case, eviction: str = "lru", interval: int | None = None) -> ReplayLoop:
    settings = ReplaySettings(
        trace=MooncakeTrace(path="unused", id_tokens=BLOCK),
        executor=OneByOne(),
        cache=CacheSettings(layers=list(case.layers)),
        pool=PoolSettings(block_size=BLOCK, num_blocks=case.blocks + 1),
        scheduler=SchedulerSettings(max_batched_tokens=64, max_num_seqs=1),
        eviction=EvictionSettings(kind=eviction),
        retention=RetentionSettings(interval=interval),
        track_misses=False,
    )
    return build_loop(settings, case.requests)


def replayed(loop: ReplayLoop) -> int:
    """Tokens hit."""
    while loop.advance(1000):
        pass
    return max(group.tokens_hit for group in loop.scheduler.cache.stats().groups)
