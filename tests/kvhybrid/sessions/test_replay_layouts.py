"""A replay with each memory layout, and the waste that it measures."""

from __future__ import annotations

from pathlib import Path

from kvhybrid.planning.layouts.base import MemoryLayout
from kvhybrid.planning.layouts.lcm import LcmLayout
from kvhybrid.planning.layouts.padded import PaddedLayout
from kvhybrid.planning.memory_meter import MemoryMeter
from kvhybrid.replay.arrivals import OpenLoop
from kvhybrid.replay.layers import CacheSettings, LayerSettings
from kvhybrid.replay.mooncake import MooncakeTrace
from kvhybrid.sessions.replay import build_loop, build_plan
from kvhybrid.sessions.replay_settings import ReplaySettings
from kvhybrid.settings.cache import PoolSettings

TRACE = Path(__file__).parents[1] / "replay" / "traces" / "conversation_trace.jsonl"
GEMMA = CacheSettings(
    layers=[
        LayerSettings(spec="full", count=10, fields={"num_kv_heads": 16, "head_size": 128}),
        LayerSettings(
            spec="sliding_window", count=52, fields={"num_kv_heads": 16, "head_size": 128, "window": 1024}
        ),
    ]
)


def measured(layout: MemoryLayout) -> tuple[int, float, float]:
    """Requests that finished, hit rate, and mean waste of a replay of the trace's first requests."""
    settings = ReplaySettings(
        trace=MooncakeTrace(path=str(TRACE), limit=60),
        executor=OpenLoop(),
        cache=GEMMA,
        pool=PoolSettings(block_size=16, num_blocks=None, memory="24GiB"),
        layout=layout,
    )
    requests = settings.trace.read()
    plan = build_plan(settings, requests)
    loop, meter = build_loop(settings, requests, plan), MemoryMeter(plan)
    while loop.advance(20):
        meter.add(loop.scheduler.cache.stats())
    stats = loop.scheduler.cache.stats()
    assert stats.usage == 0
    return loop.num_finished, stats.hit_rate, meter.figures()["memory/mean_waste"]


def test_large_pages_waste_less_of_a_conversation_than_padding() -> None:
    requests, hits, waste = measured(LcmLayout())
    padded_requests, padded_hits, padding = measured(PaddedLayout())
    assert requests == padded_requests == 60
    assert abs(hits - padded_hits) < 0.01
    assert waste < padding
