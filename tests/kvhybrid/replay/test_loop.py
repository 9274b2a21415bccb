"""The drivers and the modelled clock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from kvhybrid.errors import InputError
from kvhybrid.replay.arrivals import ArrivalProcess, OneByOne, OpenLoop
from kvhybrid.replay.cost import LinearCost
from kvhybrid.replay.latency import FirstTokenTimes
from kvhybrid.replay.layers import CacheSettings, LayerSettings
from kvhybrid.replay.loop import ReplayLoop
from kvhybrid.replay.mooncake import MooncakeTrace
from kvhybrid.replay.trace import TraceRequest
from kvhybrid.sessions.replay import build_loop
from kvhybrid.sessions.replay_settings import ReplaySettings
from kvhybrid.sessions.run_settings import PoolSettings, SchedulerSettings

SMALL = Path(__file__).with_name("small_trace.jsonl")
WINDOW = LayerSettings(spec="sliding_window", fields={"window": 1024})
COST = LinearCost(base=1.0, prefill_token=0.1, decode_token=10.0, context_token=0.001)


def loop_over(
    executor: ArrivalProcess,
    requests: Sequence[TraceRequest] | None = None,
    *,
    layers: Sequence[LayerSettings] = (LayerSettings(spec="full"),),
    cost: LinearCost = COST,
    caching: bool = True,
    num_blocks: int = 1000,
    batch: int = 512,
) -> ReplayLoop:
    trace = MooncakeTrace(path=str(SMALL))
    settings = ReplaySettings(
        trace=trace,
        executor=executor,
        cache=CacheSettings(layers=list(layers)),
        cost=cost,
        pool=PoolSettings(block_size=16, num_blocks=num_blocks, enable_prefix_caching=caching),
        scheduler=SchedulerSettings(max_batched_tokens=batch, max_num_seqs=8),
    )
    return build_loop(settings, trace.read() if requests is None else requests)


def to_the_end(loop: ReplayLoop) -> ReplayLoop:
    while loop.advance(7):
        pass
    return loop


def request(name: str, seconds: float, prompt: int, output: int) -> TraceRequest:
    return TraceRequest(name, seconds, prompt, output, np.zeros(1, np.int64))


def test_the_clock_adds_up_what_the_steps_cost() -> None:
    # 100 prompt tokens, then two decode steps with 100 and 101 tokens behind them.
    loop = to_the_end(loop_over(OneByOne(), [request("a", 50.0, 100, 3)]))
    assert loop.num_steps == 3
    assert loop.clock == pytest.approx((1 + 10) + (1 + 10 + 0.1) + (1 + 10 + 0.101))
    assert loop.first_tokens.figures() == pytest.approx({"ttft_mean": 11, "ttft_median": 11, "ttft_p99": 11})


def test_one_by_one_starts_each_when_the_last_has_ended() -> None:
    loop = loop_over(OneByOne(), [request("a", 0.0, 100, 3), request("b", 0.0, 100, 1)])
    for _ in range(3):
        loop.advance(1)
        assert len(loop.scheduler.running) + loop.num_finished == 1
    # The second finds 96 tokens: the last token of its prompt is always computed.
    before = loop.clock
    assert not to_the_end(loop).advance(1)
    assert loop.clock - before == pytest.approx(1 + 0.4 + 0.096)
    assert loop.num_finished == 2


def test_open_loop_lets_requests_in_at_their_times_and_jumps_over_idle_ones() -> None:
    requests = [request("late", 1000.0, 100, 1), request("a", 0.0, 100, 1), request("b", 5.0, 100, 1)]
    loop = loop_over(OpenLoop(), requests)
    loop.advance(1)
    assert (loop.num_finished, loop.clock) == (1, 11.0)
    loop.advance(1)  # b, which came at 5 and finds 96 tokens
    assert loop.clock == pytest.approx(11 + 1 + 0.4 + 0.096)
    to_the_end(loop)
    assert loop.clock == pytest.approx(1000 + 1 + 0.4 + 0.096)
    assert loop.first_tokens.mean == pytest.approx((11 + (12.496 - 5) + 1.496) / 3)


def test_half_the_time_scale_is_twice_the_load() -> None:
    # A step takes 11 modelled seconds, so that requests of the same second end together.
    requests = [request("a", 0.0, 100, 1), request("b", 20.0, 100, 1)]
    assert to_the_end(loop_over(OpenLoop(), requests)).clock == pytest.approx(21.496)
    assert to_the_end(loop_over(OpenLoop(time_scale=0.6), requests)).clock == pytest.approx(13.496)
    assert to_the_end(loop_over(OpenLoop(time_scale=0.0), requests)).num_steps == 1


@pytest.mark.parametrize("executor", [OneByOne(), OpenLoop(), OpenLoop(time_scale=0.01)])
@pytest.mark.parametrize("num_blocks", [700, 5000])
def test_every_request_ends_with_all_its_tokens_whatever_the_pressure(
    executor: ArrivalProcess, num_blocks: int
) -> None:
    requests = MooncakeTrace(path=str(SMALL)).read()
    loop = to_the_end(
        loop_over(executor, cost=LinearCost(), layers=[LayerSettings(spec="full"), WINDOW], num_blocks=num_blocks)
    )
    assert loop.num_finished == len(requests)
    assert loop.prompt_tokens == sum(r.num_prompt_tokens for r in requests)
    assert loop.output_tokens == sum(r.num_output_tokens for r in requests)
    stats = loop.scheduler.cache.stats()
    assert stats.blocks_free == stats.num_blocks
    for group in stats.groups:
        assert group.misses is not None
        assert group.tokens_hit + group.misses.total == group.tokens_asked


def test_caching_saves_modelled_time_and_nothing_is_hit_without_it() -> None:
    quick, slow = (to_the_end(loop_over(OpenLoop(), cost=LinearCost(), caching=c)) for c in (True, False))
    assert quick.scheduler.cache.stats().groups[0].tokens_hit > 0
    assert slow.scheduler.cache.stats().groups[0].tokens_hit == 0
    assert quick.clock <= slow.clock
    assert quick.first_tokens.mean < slow.first_tokens.mean


def test_a_request_that_no_pool_of_this_size_holds_is_refused_before_the_start() -> None:
    with pytest.raises(InputError, match=r"one request of \d+ tokens needs \d+ blocks .* the pool has 20"):
        loop_over(OneByOne(), num_blocks=20)


def test_the_times_to_first_token_are_summed_up_as_mean_median_and_p99() -> None:
    times = FirstTokenTimes()
    assert times.figures() == {"ttft_mean": 0.0, "ttft_median": 0.0, "ttft_p99": 0.0}
    for seconds in range(101):
        times.add(float(seconds) ** 2)
    assert times.figures() == pytest.approx({"ttft_mean": 3350.0, "ttft_median": 2500.0, "ttft_p99": 9801.0})


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: LinearCost(base=0.0), "cost.base must be more than 0"),
        (lambda: LinearCost(context_token=-1.0), "cost.context_token must be at least 0, found -1.0"),
        (lambda: OpenLoop(time_scale=-0.5), "executor.time_scale must be at least 0, found -0.5"),
        (
            lambda: ReplaySettings(
                trace=MooncakeTrace(path="x"), executor=OneByOne(), cache=CacheSettings(), sample_every=0
            ),
            "sample_every must be at least 1, found 0",
        ),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(build: object, expected: str) -> None:
    assert callable(build)
    with pytest.raises(ValueError, match=expected):
        build()
