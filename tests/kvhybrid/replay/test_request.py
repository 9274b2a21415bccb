"""A request without tokens: to the scheduler and the cache it is like one with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request
from kvhybrid.planning import plan_cache
from kvhybrid.replay.mooncake import MooncakeTrace
from kvhybrid.replay.prefix_keys import PrefixKeys
from kvhybrid.replay.request import ReplayRequest
from kvhybrid.replay.trace import TraceRequest
from kvhybrid.scheduling.scheduler import Scheduler
from kvhybrid.specs import FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec

SMALL = Path(__file__).with_name("small_trace.jsonl")


def request_of(num_prompt_tokens: int, keys: PrefixKeys | None) -> ReplayRequest:
    ids = np.arange(-(-num_prompt_tokens // 512), dtype=np.int64)
    return ReplayRequest(TraceRequest("r", 0.0, num_prompt_tokens, 100, ids), keys)


def test_it_counts_and_keeps_no_tokens() -> None:
    request = request_of(1100, None)
    request.append_output_token_ids((0, 0, 0))
    assert (request.num_prompt_tokens, request.num_output_tokens, request.num_tokens) == (1100, 3, 1103)
    assert (request.max_new_tokens, len(request.token_ids), len(request.block_hashes)) == (100, 0, 0)


def test_a_key_comes_with_the_token_that_fills_its_unit() -> None:
    request = request_of(1100, PrefixKeys(16, 512))
    counts = []
    for _ in range(21):
        counts.append(len(request.block_hashes))
        request.append_output_token_ids((0,))
    assert counts == [68] * 4 + [69] * 16 + [70]


class WithTokens:
    """Makes ordinary requests out of a trace's, with tokens that are equal where the trace says so."""

    def __init__(self) -> None:
        self._fresh = 10**9

    def request(self, request: TraceRequest, cache: KVCacheManager) -> Request:
        parts = [range(512 * number, 512 * number + 512) for number in request.prefix_ids.tolist()]
        prompt = [token for part in parts for token in part][: request.num_prompt_tokens]
        return Request(request.request_id, prompt, max_new_tokens=request.num_output_tokens, hasher=cache.hasher)

    def sampled(self) -> int:
        self._fresh += 1
        return self._fresh


GROUPS: dict[str, list[KVCacheSpec]] = {
    "full": [FullAttentionSpec(block_size=16)],
    "window": [FullAttentionSpec(block_size=16), SlidingWindowSpec(block_size=16, window=100)],
    "state": [FullAttentionSpec(block_size=16), MambaSpec(block_size=16)],
    "odd": [FullAttentionSpec(block_size=48)],
}


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("num_blocks", [700, 3000])
def test_every_figure_is_that_of_a_request_with_tokens(groups: str, num_blocks: int) -> None:
    requests = MooncakeTrace(path=str(SMALL), limit=20).read()
    figures = []
    for counted in (True, False):
        plan = plan_cache(
            {f"layer{i}": spec for i, spec in enumerate(GROUPS[groups])},
            num_blocks=num_blocks,
            max_model_len=10_000,
            max_in_flight_tokens=1024,
        )
        cache = KVCacheManager(plan.config, max_model_len=10_000, max_in_flight_tokens=1024, track_misses=True)
        scheduler = Scheduler(cache, max_batched_tokens=1024, max_num_seqs=8)
        keys, texts = PrefixKeys(plan.config.hash_unit, 512), WithTokens()
        for request in requests:
            scheduler.add_request(ReplayRequest(request, keys) if counted else texts.request(request, cache))
        course = []
        while scheduler.has_unfinished:
            output = scheduler.schedule()
            scheduler.update_from_output(output, {s.request.request_id: texts.sampled() for s in output.scheduled})
            course.append((output.num_scheduled_tokens, len(output.preempted), cache.num_free_blocks))
        figures.append((course, cache.stats().metrics()))
    assert figures[0] == figures[1]
    assert figures[0][1]["group/full/tokens_hit"] > 0
