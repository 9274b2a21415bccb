"""Workloads: what requests share, and that the seed decides all of it."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from kvhybrid.cli import main
from kvhybrid.workloads.base import Workload, WorkloadRequest
from kvhybrid.workloads.few_shot import FewShot
from kvhybrid.workloads.multi_turn import MultiTurn
from kvhybrid.workloads.random import Random
from kvhybrid.workloads.shared_prefix import SharedPrefix

VOCAB = 384
WORKLOADS = (SharedPrefix, MultiTurn, FewShot, Random)


def answers(request: WorkloadRequest) -> list[int]:
    """A model of sorts: an answer that depends on the whole prompt."""
    return [(sum(request.prompt_token_ids) + i) % VOCAB for i in range(request.max_new_tokens)]


def play(workload: Workload) -> list[WorkloadRequest]:
    """All requests, each answered at once, the newest first."""
    traffic = workload.traffic(VOCAB)
    sent: list[WorkloadRequest] = []
    waiting = traffic.ready()
    while waiting:
        request = waiting.pop()
        sent.append(request)
        traffic.finished(request.request_id, answers(request))
        waiting += traffic.ready()
    return sent


def common_prefix(one: list[int], other: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@pytest.mark.parametrize("kind", WORKLOADS)
def test_the_seed_decides_every_token(kind: type[Workload]) -> None:
    assert play(kind(seed=5)) == play(kind(seed=5))
    assert play(kind(seed=5)) != play(kind(seed=6))


@pytest.mark.parametrize("kind", WORKLOADS)
def test_sizes_are_kept(kind: type[Workload]) -> None:
    workload = kind()
    sent = play(workload)
    assert len(sent) == workload.num_requests
    assert len({request.request_id for request in sent}) == len(sent)
    assert all(0 <= token < VOCAB for request in sent for token in request.prompt_token_ids)
    lengths = [len(request.prompt_token_ids) + request.max_new_tokens for request in sent]
    assert max(lengths) == workload.longest_request


@pytest.mark.parametrize("kind", WORKLOADS)
def test_a_request_is_handed_out_once(kind: type[Workload]) -> None:
    traffic = kind().traffic(VOCAB)
    assert traffic.ready()
    assert traffic.ready() == []


def test_shared_prefix_shares_within_a_group_and_nowhere_else() -> None:
    workload = SharedPrefix(num_prefixes=4, requests_per_prefix=5, prefix_tokens=40, suffix_tokens=8)
    prompts = [request.prompt_token_ids for request in play(workload)]
    opened = Counter(tuple(prompt[:40]) for prompt in prompts)
    assert sorted(opened.values()) == [5, 5, 5, 5]
    for one, other in combinations(prompts, 2):
        shared = common_prefix(one, other)
        assert 40 <= shared < 46 if one[:40] == other[:40] else shared < 6


def test_shared_prefix_mixes_the_groups() -> None:
    order = [request.request_id.split("-")[0] for request in SharedPrefix().traffic(VOCAB).ready()]
    assert order != sorted(order)


def test_a_turn_repeats_all_that_was_said() -> None:
    workload = MultiTurn(num_conversations=3, turns=3, system_tokens=10, user_tokens=6, max_new_tokens=4)
    traffic = workload.traffic(VOCAB)
    first = traffic.ready()
    assert [len(request.prompt_token_ids) for request in first] == [16, 16, 16]
    assert len({tuple(request.prompt_token_ids[:10]) for request in first}) == 1

    said = answers(first[1])
    traffic.finished(first[1].request_id, said)
    (second,) = traffic.ready()
    assert second.prompt_token_ids[:20] == first[1].prompt_token_ids + said
    assert len(second.prompt_token_ids) == 26


def test_a_conversation_waits_for_its_answer_and_ends() -> None:
    traffic = MultiTurn(num_conversations=2, turns=2).traffic(VOCAB)
    one, other = traffic.ready()
    assert traffic.ready() == []
    for request in (one, other):
        traffic.finished(request.request_id, answers(request))
    for request in traffic.ready():
        traffic.finished(request.request_id, answers(request))
    assert traffic.ready() == []


def test_what_a_user_says_does_not_depend_on_who_is_answered_first() -> None:
    def second_turns(order: int) -> set[tuple[int, ...]]:
        traffic = MultiTurn(num_conversations=4, turns=2, user_tokens=6).traffic(VOCAB)
        for request in traffic.ready()[::order]:
            traffic.finished(request.request_id, answers(request))
        return {tuple(request.prompt_token_ids) for request in traffic.ready()}

    assert second_turns(1) == second_turns(-1)


def test_few_shot_draws_examples_of_one_pool_in_its_order() -> None:
    workload = FewShot(pool_examples=5, example_tokens=8, shots=3, question_tokens=4, requests=40)
    prompts = [request.prompt_token_ids for request in play(workload)]
    examples = [[tuple(prompt[i : i + 8]) for i in (0, 8, 16)] for prompt in prompts]
    pool = {example for shown in examples for example in shown}
    assert len(pool) == 5
    # One order of the pool fits all prompts: no pair is ever seen both ways round.
    before = {pair for shown in examples for pair in combinations(shown, 2)}
    assert not {(b, a) for a, b in before} & before
    shared = [common_prefix(one, other) // 8 for one, other in combinations(prompts, 2)]
    assert {0, 1, 2, 3} == set(shared)
    assert len({tuple(prompt[24:]) for prompt in prompts}) == 40


def test_random_shares_nothing() -> None:
    prompts = [request.prompt_token_ids for request in play(Random(requests=12, prompt_tokens=30))]
    assert max(common_prefix(one, other) for one, other in combinations(prompts, 2)) < 6


def test_sizes_that_make_no_sense_are_named() -> None:
    with pytest.raises(ValueError, match=r"workload.prefix_tokens must be at least 1, found 0"):
        SharedPrefix(prefix_tokens=0)
    with pytest.raises(ValueError, match=r"workload.shots must be at most workload.pool_examples, 8, found 9"):
        FewShot(shots=9)


@pytest.mark.parametrize("name", ["random", "shared_prefix", "multi_turn", "few_shot", "source_code"])
def test_a_workload_that_no_memory_holds_is_refused_before_anything_is_drawn(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    counts = {
        "random": ["requests", "prompt_tokens"],
        "shared_prefix": ["num_prefixes", "prefix_tokens"],
        "multi_turn": ["num_conversations", "turns"],
        "few_shot": ["pool_examples", "example_tokens"],
        "source_code": ["num_prefixes", "requests_per_prefix"],
    }[name]
    words = [f"workload.{count}=1000000" for count in counts]
    assert main(["run", "quality=none", f"workload={name}", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "must be at most 268,435,456, found " in line
    assert list(tmp_path.iterdir()) == []
