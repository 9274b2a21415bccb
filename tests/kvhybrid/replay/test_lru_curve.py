"""The one-pass curve: at every size, the hits of a replay of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvhybrid.replay.lru_curve import lru_hit_tokens
from kvhybrid.replay.mooncake import MooncakeTrace
from tests.kvhybrid.replay.bounds.cases import BLOCK, loop_of, random_case, replayed
from tests.kvhybrid.replay.test_engine_rule import replayed as replayed_file

SMALL = Path(__file__).with_name("small_trace.jsonl")


def test_every_size_of_the_small_trace_has_the_hits_of_a_replay() -> None:
    sizes = [*range(16, 70, 6), 300]
    requests = MooncakeTrace(path=str(SMALL), max_new_tokens=1).read()
    found = lru_hit_tokens(requests, 512, 512, sizes)
    assert found.exact.all()
    assert found.tokens.tolist() == [replayed_file(SMALL, size)[0] for size in sizes]


@pytest.mark.parametrize("part", range(4))
def test_random_traces_with_outputs_have_the_hits_of_a_replay(part: int) -> None:
    num_exact = 0
    for seed in range(10 * part, 10 * part + 10):
        case = random_case(seed, "full", known=0)
        sizes = [case.blocks + more for more in range(0, 30, 3)]
        found = lru_hit_tokens(case.requests, BLOCK, BLOCK, sizes)
        for size, tokens, exact in zip(sizes, found.tokens.tolist(), found.exact.tolist(), strict=True):
            num_exact += exact
            assert not exact or tokens == replayed(loop_of(replace(case, blocks=size))), seed
    assert num_exact > 50


def test_a_size_that_a_request_does_not_fit_in_has_no_hits() -> None:
    requests = MooncakeTrace(path=str(SMALL), max_new_tokens=1).read()
    longest = max(-(-r.num_prompt_tokens // 512) for r in requests)
    assert lru_hit_tokens(requests, 512, 512, [longest - 1]).tokens.tolist() == [-1]
    assert lru_hit_tokens(requests, 512, 512, [longest]).tokens[0] >= 0
