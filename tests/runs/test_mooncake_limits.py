"""The limits on the Mooncake traces: policies under the trace rule, MIN, and the figures of the table."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvhybrid.replay.mooncake import MooncakeTrace
from runs.mooncake_limits import run
from runs.mooncake_limits.checkpoints import RULES, unlimited
from runs.mooncake_limits.trace_rule import CACHES, Lfu, Lru, S3Fifo
from runs.pictures import read_table

STARTS = Path(__file__).resolve().parents[1] / "kvhybrid" / "replay" / "traces"
WHOLE = Path(os.environ.get("KVHYBRID_TRACES", "no folder given"))
HERE = Path(run.__file__).parent


def test_lru_evicts_the_least_recent() -> None:
    cache = Lru(2)
    cache.touch([1, 2])
    cache.touch([1, 3])
    assert [*cache.held] == [1, 3]


def test_lfu_evicts_the_least_frequent_and_of_these_the_least_recent() -> None:
    cache = Lfu(2)
    cache.touch([1, 1, 2])
    cache.touch([3])
    assert [*cache.held] == [1, 3]
    cache.touch([2])
    assert cache.held[2][0] == 1  # its first two uses are forgotten


def test_s3_fifo_keeps_what_was_used_twice_more_and_what_returns() -> None:
    cache = S3Fifo(3)
    cache.touch([1, 1, 1, 2, 3, 4])
    assert sorted(cache.held) == [1, 3, 4]
    cache.touch([2, 5, 6, 7])
    assert {1, 2} <= {*cache.held}


@pytest.mark.parametrize("name", run.TRACE_RULE)
def test_no_policy_beats_min_on_the_start_of_a_public_trace(name: str) -> None:
    requests = MooncakeTrace(path=str(STARTS / f"{name}_trace.jsonl"), max_new_tokens=1).read()
    for blocks in (200, 1_000):
        best = run.trace_rule(requests, "MIN", blocks)
        rates = [run.trace_rule(requests, policy, blocks) for policy in CACHES]
        assert max(rates) <= best
        assert min(rates) < best


@pytest.mark.parametrize("name", run.TRACE_RULE)
def test_more_checkpoints_hit_more(name: str) -> None:
    requests = MooncakeTrace(path=str(STARTS / f"{name}_trace.jsonl")).read()
    rates = {rule: unlimited(requests, keep)[0] for rule, keep in RULES.items()}
    assert rates["every block"] >= rates["every 4th + last"] >= rates["every 16th + last"] >= rates["last only"]
    assert rates["every block"] >= rates["last + branch"] >= rates["last only"]


def test_the_committed_table_is_exact() -> None:
    rows = read_table(HERE / "table.md")
    assert len(rows) == 10
    assert {row["mark"] for row in rows} == {"exact"}


@pytest.mark.long
@pytest.mark.parametrize("name", run.TRACE_RULE)
def test_the_whole_traces_give_the_published_figures(name: str) -> None:
    path = WHOLE / f"{name}_trace.jsonl"
    if not path.is_file():
        pytest.skip("set KVHYBRID_TRACES to a folder with the complete traces")
    requests = MooncakeTrace(path=str(path), max_new_tokens=1).read()
    for policy, expected in run.TRACE_RULE[name].items():
        rates = [run.trace_rule(requests, policy, blocks) for blocks in run.BLOCKS]
        assert rates == pytest.approx(list(expected), abs=run.TOLERANCE), policy
    rates = run.engine_rule(requests, (*run.BLOCKS, run.UNLIMITED))
    assert rates == pytest.approx(list(run.ENGINE_RULE[name]), abs=0.01)
