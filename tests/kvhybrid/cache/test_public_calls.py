"""The public calls: their answers are snapshots, and wrong requests and wrong counts are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.conformance.invariants import check_invariants
from kvhybrid.managers.pool.keys import BlockPoolError
from kvhybrid.specs import (
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from tests.kvhybrid.cache.snapshots import snapshot

FULL = FullAttentionSpec(block_size=4)
WINDOW = SlidingWindowSpec(block_size=4, window=9)
STATE = MambaSpec(block_size=4)
CROSS = CrossAttentionSpec(block_size=4)
LONGEST = 64


def manager_of(*specs: KVCacheSpec, num_blocks: int = 100, **options: Any) -> KVCacheManager:
    groups = tuple(KVCacheGroup(f"g{g}", spec) for g, spec in enumerate(specs))
    return KVCacheManager(
        KVCacheConfig(groups, num_blocks, hash_block_size=options.pop("unit", None)),
        max_model_len=LONGEST,
        **options,
    )


def request_of(manager: KVCacheManager, name: str = "r", num_tokens: int = 20, **options: Any) -> Request:
    return Request(name, range(num_tokens), hasher=manager.hasher, **options)


def run(manager: KVCacheManager, request: Request, new: int) -> Any:
    manager.new_step_starts()
    found = manager.get_computed_blocks(request) if not request.num_computed_tokens else None
    hit = found.num_tokens if found else 0
    blocks = manager.allocate_slots(request, new, hit, found.blocks if found else None)
    manager.release_copies()
    request.num_computed_tokens += hit + new
    request.status = RequestStatus.RUNNING
    return blocks


# ---- answers are snapshots

Answers = Callable[[KVCacheManager, Request], tuple[np.ndarray, ...]]


def scribble(rows: tuple[np.ndarray, ...]) -> None:
    for row in rows:
        try:
            row[:] = 7
        except ValueError:
            assert not row.flags.writeable


@pytest.mark.parametrize(
    "specs",
    [(FULL,), (FULL, WINDOW), (FULL, WINDOW, WINDOW), (FULL, STATE)],
    ids=["full", "window", "two", "state"],
)
class TestAnswers:
    def test_the_blocks_of_a_step_do_not_change_later(self, specs: tuple[KVCacheSpec, ...]) -> None:
        manager = manager_of(*specs)
        request = request_of(manager, num_tokens=40)
        answers = [run(manager, request, 8)]
        tables = [manager.get_block_ids("r")]
        then = [[row.tolist() for row in answers[0].ids], [row.tolist() for row in tables[0]]]
        for _ in range(4):
            run(manager, request, 8)
        manager.free(request)
        assert [[row.tolist() for row in answers[0].ids], [row.tolist() for row in tables[0]]] == then

    def test_a_write_to_an_answer_changes_nothing(self, specs: tuple[KVCacheSpec, ...]) -> None:
        manager = manager_of(*specs)
        first = request_of(manager, "first", 40)
        for _ in range(5):
            answer = run(manager, first, 8)
            before = snapshot(manager)
            scribble(answer.ids)
            scribble(manager.get_block_ids("first"))
            scribble(manager.get_blocks("first").ids)
            assert snapshot(manager) == before
        again = request_of(manager, "again", 41)
        manager.new_step_starts()
        found = manager.get_computed_blocks(again)
        blocks = found.blocks.get_block_ids()
        scribble(found.blocks.ids)
        scribble(found.blocks.by_manager)
        assert found.blocks.get_block_ids() == blocks
        assert manager.allocate_slots(again, 1, found.num_tokens, found.blocks) is not None
        check_invariants(manager)

    def test_a_look_up_does_not_change_later(self, specs: tuple[KVCacheSpec, ...]) -> None:
        manager = manager_of(*specs)
        first = request_of(manager, "first", 40)
        for _ in range(5):
            run(manager, first, 8)
        manager.new_step_starts()
        found = manager.get_computed_blocks(request_of(manager, "again", 41)).blocks
        then = found.get_block_ids()
        manager.free(first)
        stranger = Request("stranger", range(500, 560), hasher=manager.hasher)
        run(manager, stranger, 60)
        assert manager.reset_prefix_cache() is False
        assert found.get_block_ids() == then


def test_copies_are_a_snapshot() -> None:
    manager = manager_of(FullAttentionSpec(block_size=8), MambaSpec(block_size=8), unit=4)
    first = request_of(manager, "first", 13)
    run(manager, first, 12)
    manager.new_step_starts()
    assert manager.allocate_slots(first, 1) is not None
    copies = manager.take_copies()
    copies.clear()
    assert manager.take_copies()


# ---- another request of the same id

OTHER_CALLS: dict[str, Callable[[KVCacheManager, Request], object]] = {
    "get_computed_blocks": lambda manager, request: manager.get_computed_blocks(request),
    "allocate_slots": lambda manager, request: manager.allocate_slots(request, 4),
    "cache_blocks": lambda manager, request: manager.cache_blocks(request, 4),
    "free": lambda manager, request: manager.free(request),
    "pop_blocks_for_free": lambda manager, request: manager.pop_blocks_for_free(request),
    "forget": lambda manager, request: manager.forget(request),
    "blocks_to_finish": lambda manager, request: manager.blocks_to_finish(request, 4),
}


@pytest.mark.parametrize("call", OTHER_CALLS)
def test_another_request_of_the_same_id_is_refused(call: str) -> None:
    manager = manager_of(FULL)
    owner = request_of(manager)
    run(manager, owner, 10)
    before = snapshot(manager)
    with pytest.raises(ValueError, match="'r': another request of this id holds blocks"):
        OTHER_CALLS[call](manager, request_of(manager))
    assert snapshot(manager) == before
    manager.free(owner)
    run(manager, request_of(manager), 10)


# ---- token counts

HUGE = 10**30


@pytest.mark.parametrize(
    ("new", "options", "message"),
    [
        (-5, {}, "num_new_tokens = -5; accepted: 0 to 54"),
        (HUGE, {}, f"num_new_tokens = {HUGE}; accepted: 0 to 54"),
        (55, {}, "num_new_tokens = 55; accepted: 0 to 54"),
        (1, {"num_lookahead_tokens": -1}, "num_lookahead_tokens = -1; accepted: 0 to 64"),
        (4, {"num_lookahead_tokens": -4}, "num_lookahead_tokens = -4; accepted: 0 to 64"),
        (1, {"num_lookahead_tokens": HUGE}, f"num_lookahead_tokens = {HUGE}; accepted: 0 to 64"),
        (1, {"num_external_computed_tokens": -4}, "num_external_computed_tokens = -4; accepted: 0 to 54"),
        (1, {"num_external_computed_tokens": HUGE}, "num_external_computed_tokens"),
        (1, {"num_new_computed_tokens": -4}, "num_new_computed_tokens = -4; accepted: 0 to 0"),
        (1, {"num_new_computed_tokens": 4}, "num_new_computed_tokens = 4; accepted: 0 to 0"),
        (1, {"num_encoder_tokens": -1}, "num_encoder_tokens = -1; accepted: 0 to 6"),
        (1, {"num_encoder_tokens": HUGE}, "num_encoder_tokens"),
        (1, {"reserved_blocks": -1}, "reserved_blocks = -1; accepted: at least 0"),
    ],
)
def test_a_count_that_cannot_be_is_refused_with_the_figure(
    new: int, options: dict[str, int], message: str
) -> None:
    """Of a running request of 20 tokens, 10 of which are computed."""
    manager = manager_of(FULL, CROSS)
    request = request_of(manager, num_encoder_tokens=6)
    assert manager.allocate_slots(request, 10, num_encoder_tokens=6) is not None
    request.num_computed_tokens, request.status = 10, RequestStatus.RUNNING
    before = snapshot(manager)
    with pytest.raises(ValueError, match=f"'r': {message}"):
        manager.allocate_slots(request, new, **options)
    assert snapshot(manager) == before
    assert manager.stats().refusals == 0


@pytest.mark.parametrize(
    ("new", "options", "message"),
    [
        (-5, {}, "num_new_tokens = -5; accepted: 0 to 64"),
        (65, {}, "num_new_tokens = 65; accepted: 0 to 64"),
        (1, {"num_external_computed_tokens": 65}, "num_external_computed_tokens = 65; accepted: 0 to 64"),
        (60, {"num_external_computed_tokens": 8}, "num_new_tokens = 60; accepted: 0 to 56"),
        (1, {"num_encoder_tokens": 7}, "num_encoder_tokens = 7; accepted: 0 to 0"),
    ],
)
def test_so_it_is_at_an_admission(new: int, options: dict[str, int], message: str) -> None:
    manager = manager_of(FULL)
    with pytest.raises(ValueError, match=f"'r': {message}"):
        manager.allocate_slots(request_of(manager), new, **options)
    assert manager.usage == 0.0


@pytest.mark.parametrize(
    ("name", "computed", "message"),
    [
        ("num_computed_tokens", -1, "num_computed_tokens = -1; accepted: 0 to 10"),
        ("num_computed_tokens", 11, "num_computed_tokens = 11; accepted: 0 to 10"),
        ("num_in_flight_tokens", -1, "num_in_flight_tokens = -1; accepted: at least 0"),
    ],
)
def test_so_are_those_of_the_request(name: str, computed: int, message: str) -> None:
    """More computed tokens than the last step had are tokens that nobody computed."""
    manager = manager_of(FULL)
    request = request_of(manager)
    run(manager, request, 10)
    setattr(request, name, computed)
    before = snapshot(manager)
    with pytest.raises(ValueError, match=f"'r': {message}"):
        manager.allocate_slots(request, 4)
    assert snapshot(manager) == before


def test_computed_tokens_without_blocks_are_refused() -> None:
    manager = manager_of(FULL)
    request = request_of(manager)
    run(manager, request, 8)
    manager.free(request)
    with pytest.raises(ValueError, match="'r': num_computed_tokens = 8; accepted: 0 to 0"):
        manager.allocate_slots(request, 4)


@pytest.mark.parametrize("inside", [True, False])
def test_a_decode_step_that_skips_a_token_is_refused(inside: bool) -> None:
    """Also where the step would need nothing, inside its block."""
    manager = manager_of(FULL)
    request = request_of(manager, num_tokens=10)
    run(manager, request, 10)
    for _ in range(0 if inside else 2):
        request.append_output_token_ids([1])
        run(manager, request, 1)
    request.num_computed_tokens += 1
    request.append_output_token_ids([1, 1])
    with pytest.raises(ValueError, match="num_computed_tokens"):
        manager.allocate_slots(request, 1)


@pytest.mark.parametrize("count", [-1, 11, HUGE])
def test_blocks_of_tokens_without_entries_get_no_keys(count: int) -> None:
    manager = manager_of(FULL)
    request = request_of(manager)
    run(manager, request, 10)
    with pytest.raises(ValueError, match=f"'r': num_computed_tokens = {count}; accepted: 0 to 10"):
        manager.cache_blocks(request, count)
    with pytest.raises(ValueError, match="'s': num_computed_tokens"):
        manager.cache_blocks(request_of(manager, "s"), -1)


@pytest.mark.parametrize("count", [-1, 65, HUGE])
def test_a_step_that_cannot_be_is_not_planned(count: int) -> None:
    manager = manager_of(FULL)
    with pytest.raises(ValueError, match=f"'r': num_new_tokens = {count}; accepted: 0 to 64"):
        manager.blocks_to_finish(request_of(manager), count)


@pytest.mark.parametrize("group", [-1, 2])
def test_blocks_are_evicted_of_a_group_that_there_is(group: int) -> None:
    manager = manager_of(FULL, WINDOW)
    with pytest.raises(ValueError, match=f"group = {group}; accepted: 0 to 1"):
        manager.evict_blocks([1], group)


def test_the_longest_request_may_be_filled_to_its_last_token() -> None:
    manager = manager_of(FULL)
    request = request_of(manager, num_tokens=64)
    assert manager.allocate_slots(request, 64, num_lookahead_tokens=3) is not None
    assert len(manager.get_block_ids("r")[0]) == 16


COUNTS = ("num_lookahead_tokens", "num_external_computed_tokens", "num_encoder_tokens", "reserved_blocks")


@pytest.mark.parametrize("found", [float("nan"), 1.5, 2.0, "3", None], ids=str)
@pytest.mark.parametrize("name", ["num_new_tokens", *COUNTS])
def test_a_count_that_is_no_integer_is_refused(name: str, found: Any) -> None:
    manager = manager_of(FULL)
    before = snapshot(manager)
    counts: dict[str, Any] = {"num_new_tokens": 4, name: found}
    with pytest.raises(TypeError):
        manager.allocate_slots(request_of(manager), **counts)
    assert snapshot(manager) == before


@pytest.mark.parametrize("found", [float("nan"), 1.5, "3", None], ids=str)
def test_a_block_to_evict_that_is_no_integer_is_refused(found: Any) -> None:
    manager = manager_of(FULL)
    run(manager, request_of(manager), 10)
    before = snapshot(manager)
    with pytest.raises(TypeError):
        manager.evict_blocks([1, found])
    with pytest.raises(BlockPoolError, match=rf"must lie in \[0, .*\), found \[1, {HUGE}\]"):
        manager.evict_blocks([1, HUGE])
    assert snapshot(manager) == before
