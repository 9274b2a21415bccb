"""One request after another, one full-attention group, LRU: the hits of an independent simulator of that rule.

The rule: only full blocks count; a hit is at most the prompt without its last token; the hit is measured before
anything is evicted, and its blocks are held; a request's blocks go back tail first; the least recent go first.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from pathlib import Path

import pytest

from kvhybrid.replay.arrivals import OneByOne
from kvhybrid.replay.layers import CacheSettings, LayerSettings
from kvhybrid.replay.mooncake import MooncakeTrace
from kvhybrid.sessions.replay import build_loop
from kvhybrid.sessions.replay_settings import ReplaySettings
from kvhybrid.sessions.run_settings import PoolSettings, SchedulerSettings

SMALL = Path(__file__).with_name("small_trace.jsonl")
STARTS = Path(__file__).with_name("traces")
WHOLE = Path(os.environ.get("KVHYBRID_TRACES", "no folder given"))
"""Where the long test finds the complete traces: traces/README.md says how to get them."""
UNLIMITED = 200_000
BLOCKS = (1_000, 4_000, 8_000, 16_000, 32_000, UNLIMITED)
PUBLISHED = {
    "conversation": (4.59, 9.20, 18.89, 27.33, 34.39, 37.34),
    "synthetic": (8.68, 25.28, 38.83, 54.71, 64.46, 65.04),
}


def simulated(path: Path, capacity: int, limit: int | None = None) -> tuple[int, int]:
    """Tokens hit, tokens asked."""
    cached: OrderedDict[int, None] = OrderedDict()  # blocks without a holder, in the order of eviction
    hit_tokens = asked = 0
    for line in path.read_text().splitlines()[:limit]:
        request = json.loads(line)
        length = request["input_length"]
        ids = request["hash_ids"][: length // 512]
        hit = 0
        while hit < (length - 1) // 512 and ids[hit] in cached:
            hit += 1
        for held in ids[:hit]:
            del cached[held]
        new = -(-length // 512) - hit
        for _ in range(new - (capacity - hit - len(cached))):
            cached.popitem(last=False)
        for block in reversed(ids):
            cached[block] = None
            cached.move_to_end(block)
        hit_tokens += 512 * hit
        asked += length
    return hit_tokens, asked


def replayed(path: Path, blocks: int, limit: int | None = None) -> tuple[int, int]:
    """Tokens hit, tokens asked, with ``blocks`` usable ones."""
    trace = MooncakeTrace(path=str(path), limit=limit, max_new_tokens=1)
    settings = ReplaySettings(
        trace=trace,
        executor=OneByOne(),
        cache=CacheSettings(layers=[LayerSettings(spec="full")]),
        pool=PoolSettings(block_size=512, num_blocks=blocks + 1),
        scheduler=SchedulerSettings(max_batched_tokens=8192, max_num_seqs=1),
        track_misses=False,
    )
    loop = build_loop(settings, trace.read())
    while loop.advance(10_000):
        pass
    figures = loop.scheduler.cache.stats().groups[0]
    return figures.tokens_hit, figures.tokens_asked


@pytest.mark.parametrize("blocks", [*range(16, 70, 3), 300])
def test_a_small_trace_gives_the_hits_of_the_rule(blocks: int) -> None:
    assert replayed(SMALL, blocks) == simulated(SMALL, blocks)


def test_the_small_trace_has_something_to_lose() -> None:
    rates = [hit / asked for hit, asked in (simulated(SMALL, blocks) for blocks in (16, 40, 300))]
    assert rates[0] < rates[1] < rates[2]


@pytest.mark.parametrize("blocks", [400, 2_000, UNLIMITED])
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_start_of_a_public_trace_gives_the_hits_of_the_rule(name: str, blocks: int) -> None:
    path = STARTS / f"{name}_trace.jsonl"
    assert replayed(path, blocks) == simulated(path, blocks)


@pytest.mark.long
@pytest.mark.parametrize("place", range(len(BLOCKS)))
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_whole_public_trace_gives_the_hits_of_the_rule_and_the_published_rate(name: str, place: int) -> None:
    path = WHOLE / f"{name}_trace.jsonl"
    if not path.is_file():
        pytest.skip("set KVHYBRID_TRACES to a folder with the complete traces")
    hit, asked = replayed(path, BLOCKS[place])
    assert (hit, asked) == simulated(path, BLOCKS[place])
    assert 100 * hit / asked == pytest.approx(PUBLISHED[name][place], abs=0.05)
