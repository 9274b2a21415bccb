"""Generated traces: equal seeds give equal requests, and what is said to be shared is shared."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from kvhybrid.replay import traces
from kvhybrid.replay.generators.base import GeneratedTrace
from kvhybrid.replay.trace import TraceRequest

SMALL: dict[str, dict[str, Any]] = {
    "shared_prefix": {"num_prefixes": 3, "requests_per_prefix": 4, "prefix_tokens": 64, "suffix_tokens": 20},
    "multi_turn": {"num_conversations": 3, "turns_per_conversation": 3, "system_tokens": 32, "user_tokens": 16},
    "few_shot": {"requests": 12, "example_tokens": 32},
    "agent_loops": {"sessions": 3, "steps": 5, "system_tokens": 64, "task_tokens": 32},
    "needle_forks": {"contexts": 2, "context_tokens": 320, "forks": 5},
    "round_robin": {"contexts": 3, "context_tokens": 160, "rounds": 3},
    "zipf": {"requests": 60, "documents": 12, "document_tokens": 64},
}


def trace_of(kind: str, **changes: Any) -> GeneratedTrace:
    made: GeneratedTrace = traces.find(kind)(**SMALL[kind], **changes)  # type: ignore[assignment]
    return made


def plain(requests: list[TraceRequest]) -> list[dict[str, Any]]:
    return [vars(r) | {"prefix_ids": r.prefix_ids.tolist()} for r in requests]


def common(first: TraceRequest, second: TraceRequest) -> int:
    """Parts in common."""
    return len({*first.prefix_ids.tolist()} & {*second.prefix_ids.tolist()})


@pytest.mark.parametrize("kind", SMALL)
def test_a_seed_decides_everything(kind: str) -> None:
    assert plain(trace_of(kind).read()) == plain(trace_of(kind).read())
    assert plain(trace_of(kind).read()) != plain(trace_of(kind, seed=1).read())


@pytest.mark.parametrize("kind", SMALL)
def test_requests_are_well_formed(kind: str) -> None:
    requests = trace_of(kind).read()
    assert [r.seconds for r in requests] == sorted(r.seconds for r in requests)
    assert len({r.request_id for r in requests}) == len(requests)
    index_of: dict[int, int] = {}
    for r in requests:
        assert len(r.prefix_ids) == -(-r.num_tokens // 16)
        for index, number in enumerate(r.prefix_ids.tolist()):
            assert index_of.setdefault(number, index) == index


@pytest.mark.parametrize("kind", SMALL)
def test_a_size_out_of_range_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=r"trace.rate must be more than 0"):
        trace_of(kind, rate=0.0)
    with pytest.raises(ValueError, match=r"trace.output_tokens must be at least 1, found 0"):
        trace_of(kind, output_tokens=0)


def test_requests_of_a_group_share_its_prefix() -> None:
    requests = trace_of("shared_prefix").read()
    groups = Counter(tuple(r.prefix_ids.tolist()[:4]) for r in requests)
    assert sorted(groups.values()) == [4, 4, 4]


def test_a_turn_contains_the_previous_prompt_and_its_answer() -> None:
    requests = [r for r in trace_of("multi_turn", output_tokens=16).read() if r.session == "conversation0"]
    assert [r.num_prompt_tokens for r in requests] == [48, 80, 112]
    assert [common(a, b) for a, b in pairwise(requests)] == [4, 6]


def test_contexts_of_agents_grow_or_collapse() -> None:
    def lengths(**changes: Any) -> list[int]:
        return [r.num_prompt_tokens for r in trace_of("agent_loops", **changes).read() if r.session == "session0"]

    assert lengths(tool_tokens=64) == sorted(lengths(tool_tokens=64))
    collapsed = lengths(tool_tokens=64, summary_tokens=32, collapse_tokens=400)
    assert max(collapsed) <= 400
    assert collapsed != sorted(collapsed)


def test_forks_leave_their_context_at_different_depths() -> None:
    requests = trace_of("needle_forks").read()
    first = {r.request_id.split("-")[0]: r for r in reversed(requests)}
    depths = {common(r, first[r.request_id.split("-")[0]]) for r in requests if r not in first.values()}
    assert len(depths) > 4
    assert max(depths) <= 20


def test_contexts_are_read_in_rounds() -> None:
    names = [r.request_id for r in trace_of("round_robin").read()]
    assert names[:4] == ["context0-round0", "context1-round0", "context2-round0", "context0-round1"]


def test_a_few_documents_are_popular() -> None:
    counts = Counter(int(r.prefix_ids[0]) for r in trace_of("zipf", exponent=1.5).read()).most_common()
    assert counts[0][1] > 3 * counts[-1][1]
