"""Hit rates are those of first admissions; requests that come back after a preemption are counted apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request
from kvhybrid.cache.stats import CacheStats, MissCauses
from kvhybrid.conformance.records import Records
from kvhybrid.report.summary import GroupDescription, RunSummary
from kvhybrid.report.table import print_run
from kvhybrid.scheduling.scheduler import Scheduler
from kvhybrid.specs import FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec

FULL = FullAttentionSpec(block_size=4)
MODELS: dict[str, tuple[KVCacheSpec, ...]] = {
    "full": (FULL,),
    "window": (FULL, SlidingWindowSpec(block_size=4, window=9)),
    "state": (FULL, MambaSpec(block_size=4)),
}


def serve(specs: tuple[KVCacheSpec, ...], num_blocks: int, **options: Any) -> tuple[CacheStats, Scheduler]:
    """24 prompts of 30 tokens that share nothing, 20 tokens each after them."""
    groups = tuple(KVCacheGroup(f"g{g}", spec) for g, spec in enumerate(specs))
    cache = KVCacheManager(KVCacheConfig(groups, num_blocks), max_model_len=64, **options)
    scheduler, records = Scheduler(cache, max_batched_tokens=32, max_num_seqs=8), Records(cache)
    for i in range(24):
        prompt = range(1000 * i, 1000 * i + 30)
        scheduler.add_request(Request(f"r{i}", prompt, max_new_tokens=20, hasher=cache.hasher))
    while scheduler.has_unfinished:
        output = scheduler.schedule()
        scheduler.update_from_output(
            output, {item.request.request_id: 7 for item in output.scheduled if item.samples}
        )
        records.check()
    return cache.stats(), scheduler


@pytest.mark.parametrize("track_misses", [True, False])
@pytest.mark.parametrize("specs", MODELS.values(), ids=MODELS)
def test_prompts_that_share_nothing_hit_nothing_in_a_pool_of_any_size(
    specs: tuple[KVCacheSpec, ...], track_misses: bool
) -> None:
    (large, calm), (small, busy) = (serve(specs, n, track_misses=track_misses) for n in (2000, 50 * len(specs)))
    assert calm.num_preemptions == 0 < busy.num_preemptions
    for stats in (large, small):
        assert stats.hit_rate == 0.0
        for group in stats.groups:
            assert (group.tokens_asked, group.tokens_hit, group.tokens_own_hit) == (24 * 30, 0, 0)
            assert group.hit_rate == group.own_hit_rate == 0.0
            assert group.misses == (MissCauses(never_seen=24 * 28, granularity=24 * 2) if track_misses else None)
    assert large.readmitted_tokens == 0
    assert small.readmitted_tokens > busy.num_preemptions * 30
    if specs == MODELS["full"]:
        assert 0 < small.readmitted_hit_rate < 1, "it finds blocks of its own"
    for group in small.groups:
        again = group.readmitted
        assert again.tokens_asked == small.readmitted_tokens
        assert again.hit_rate == small.readmitted_hit_rate
        if track_misses:
            assert again.misses is not None
            assert again.tokens_hit + again.misses.total == again.tokens_asked


def test_the_figures_have_names_for_groups_and_in_total() -> None:
    stats, _ = serve(MODELS["window"], 100)
    metrics = stats.metrics()
    assert metrics["readmitted/tokens_asked"] == stats.readmitted_tokens > 0
    assert metrics["readmitted/hit_rate"] == stats.readmitted_hit_rate
    for name in ("g0", "g1"):
        assert metrics[f"group/{name}/hit_rate"] == 0.0
        assert metrics[f"group/{name}/readmitted/tokens_asked"] == stats.readmitted_tokens
        assert metrics[f"group/{name}/readmitted/hit_rate"] == stats.readmitted_hit_rate


@pytest.mark.parametrize(("num_blocks", "shown"), [(50, True), (2000, False)])
def test_the_table_shows_them_where_there_are_any(
    num_blocks: int, shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    stats, _ = serve(MODELS["full"], num_blocks)
    described = (GroupDescription("g0", "full", 1, 4),)
    print_run(RunSummary("name", "done", described, stats, 24, 720, 480, 9, 3, 1.0, Path()))
    out, rate = capsys.readouterr().out, f"{stats.readmitted_hit_rate:.1%}"
    assert (f"after preemptions: {stats.readmitted_tokens:,} tokens asked for again, {rate}" in out) is shown
    assert ("after preemptions" in out) is shown
