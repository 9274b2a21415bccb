"""The cache manager: loads from outside, encoders, drafts, refusals, and steps that fail half-way."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.errors import ManagerError
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.conformance.invariants import check_invariants
from kvhybrid.managers.prefix.index import PrefixIndex
from kvhybrid.managers.sliding_window import SlidingWindowManager
from kvhybrid.scheduling.chunking import PrefillChunking
from kvhybrid.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from tests.kvhybrid.cache.snapshots import snapshot

FULL = FullAttentionSpec(block_size=4)
WINDOW = SlidingWindowSpec(block_size=4, window=5)
STATE = MambaSpec(block_size=4)


def manager_of(specs: Sequence[KVCacheSpec], num_blocks: int = 60, **options: object) -> KVCacheManager:
    groups = tuple(KVCacheGroup(f"g{i}", spec) for i, spec in enumerate(specs))
    unit = options.pop("hash_block_size", None)
    config = KVCacheConfig(groups, num_blocks, hash_block_size=unit)  # type: ignore[arg-type]
    return KVCacheManager(config, **{"max_model_len": 200, **options})  # type: ignore[arg-type]


def request_of(manager: KVCacheManager, name: str, num_tokens: int, first: int = 0, **options: int) -> Request:
    return Request(name, range(first, first + num_tokens), hasher=manager.hasher, **options)  # type: ignore[arg-type]


def run(manager: KVCacheManager, request: Request, new: int, **options: object) -> bool:
    """One step of a request: look up and adopt if it is new, then ``new`` tokens."""
    manager.new_step_starts()
    found = manager.get_computed_blocks(request) if not request.num_computed_tokens else None
    hit = found.num_tokens if found else 0
    blocks = manager.allocate_slots(request, new, hit, found.blocks if found else None, **options)  # type: ignore[arg-type]
    manager.release_copies()
    check_invariants(manager)
    if blocks is None:
        return False
    request.num_computed_tokens += hit + new
    request.status = RequestStatus.RUNNING
    return True


def tables(manager: KVCacheManager, request: Request) -> list[list[int]]:
    return [row.tolist() for row in manager.get_block_ids(request.request_id)]


# ---- a request's life


def test_a_request_that_holds_nothing_has_empty_tables_and_frees_nothing() -> None:
    manager = manager_of([FULL, WINDOW])
    request = request_of(manager, "r", 8)
    assert tables(manager, request) == [[], []]
    manager.free(request)
    assert manager.num_free_blocks == 59


def test_slots_are_never_reserved_beyond_the_longest_request() -> None:
    manager = manager_of([FULL], max_model_len=10)
    request = request_of(manager, "r", 9)
    assert run(manager, request, 9, num_lookahead_tokens=8)
    assert tables(manager, request) == [[1, 2, 3]]


def test_a_window_lets_go_of_settled_tokens_only() -> None:
    manager = manager_of([WINDOW])
    request = request_of(manager, "r", 17)
    run(manager, request, 12)
    request.num_in_flight_tokens = 12
    run(manager, request, 4)
    assert tables(manager, request) == [[1, 2, 3, 4]], "the first step is not settled"
    request.num_in_flight_tokens = 4
    run(manager, request, 1)
    assert tables(manager, request)[0][:2] == [0, 0]


def test_a_refused_window_step_may_have_given_back_what_is_dead() -> None:
    manager = manager_of([FULL, WINDOW], num_blocks=7)
    request = request_of(manager, "r", 24)
    assert run(manager, request, 12)
    assert not run(manager, request, 12), "three more for full attention and three for the window"
    assert tables(manager, request) == [[1, 2, 3], [0, 0, 6]]
    assert manager.num_free_blocks == 2


def test_a_dead_block_goes_back_after_rejected_drafts_too() -> None:
    """Drafts reserve slots far ahead; steps that only fill these still free what the window has left."""
    manager = manager_of([SlidingWindowSpec(block_size=3, window=1)])
    request = request_of(manager, "r", 5, skip_reading_prefix_cache=True)
    run(manager, request, 5)
    request.append_output_token_ids([90])
    run(manager, request, 4)
    request.num_computed_tokens -= 3
    request.append_output_token_ids([91])
    run(manager, request, 1)
    assert tables(manager, request)[0][:2] == [0, 0], "nothing reads the tokens before the sixth"


def test_cross_attention_takes_the_encoder_s_blocks_once() -> None:
    manager = manager_of([FULL, CrossAttentionSpec(block_size=4)])
    request = request_of(manager, "r", 6, num_encoder_tokens=10)
    run(manager, request, 6, num_encoder_tokens=10)
    assert tables(manager, request) == [[1, 2], [3, 4, 5]]
    request.append_output_token_ids([1, 2, 3])
    run(manager, request, 3)
    assert tables(manager, request) == [[1, 2, 6], [3, 4, 5]]
    manager.free(request)
    again = request_of(manager, "again", 6, num_encoder_tokens=10)
    assert manager.get_computed_blocks(again).num_tokens == 4
    assert manager.get_computed_blocks(again).blocks.get_block_ids() == ([1], [])


# ---- tokens from outside


def test_tokens_from_outside_get_blocks_and_keys_like_computed_ones() -> None:
    manager = manager_of([FULL])
    first = request_of(manager, "first", 20)
    blocks = manager.allocate_slots(first, 4, num_external_computed_tokens=16)
    assert blocks is not None
    assert blocks.get_block_ids() == ([5],), "the blocks of the load are not listed"
    assert tables(manager, first) == [[1, 2, 3, 4, 5]]
    assert manager.get_computed_blocks(request_of(manager, "other", 20)).num_tokens == 16
    check_invariants(manager)


def test_a_load_that_still_runs_gives_no_keys_until_it_is_done() -> None:
    manager = manager_of([FULL])
    first = request_of(manager, "first", 20)
    manager.allocate_slots(first, 0, num_external_computed_tokens=16, delay_cache_blocks=True)
    first.num_computed_tokens, first.status = 16, RequestStatus.LOADING
    other = request_of(manager, "other", 20)
    assert manager.get_computed_blocks(other).num_tokens == 0
    manager.cache_blocks(first, 16)
    assert manager.get_computed_blocks(other).num_tokens == 16


def test_a_load_behind_a_hit_keeps_of_the_hit_what_is_still_read() -> None:
    manager = manager_of([FULL, WINDOW])
    first = request_of(manager, "first", 9)
    run(manager, first, 9)
    manager.free(first)
    second = request_of(manager, "second", 30)
    found = manager.get_computed_blocks(second)
    assert found.num_tokens == 8
    assert manager.allocate_slots(second, 1, 8, found.blocks, num_external_computed_tokens=16) is not None
    assert tables(manager, second)[0][:2] == found.blocks.get_block_ids()[0]
    window = tables(manager, second)[1]
    assert window[:5] == [0, 0, 0, 0, 0]
    assert all(window[5:])
    check_invariants(manager)


# ---- hits inside a block


def test_a_hit_inside_a_block_is_copied_before_it_is_written() -> None:
    manager = manager_of([FullAttentionSpec(block_size=4), MambaSpec(block_size=4)], hash_block_size=2)
    chunking = PrefillChunking(manager.coordinator)
    first = request_of(manager, "first", 7)
    while first.num_computed_tokens < 7:
        run(manager, first, chunking.clip(first, first.num_computed_tokens, 7 - first.num_computed_tokens))
    manager.free(first)
    second = request_of(manager, "second", 7)
    found = manager.get_computed_blocks(second)
    assert found.num_tokens == 6
    manager.new_step_starts()
    assert manager.allocate_slots(second, 1, 6, found.blocks) is not None
    copies = manager.take_copies()
    sources, targets = [s for s, _ in copies], [t for _, t in copies]
    assert sources == [found.blocks.get_block_ids()[0][-1], found.blocks.get_block_ids()[1][-1]]
    assert [row[-1] for row in tables(manager, second)] == targets
    assert set(sources).isdisjoint(targets)
    manager.free(second)
    check_invariants(manager)
    assert {*sources, *targets}.isdisjoint(manager.block_pool.free_queue()), "held until the copies have run"
    manager.release_copies()
    assert manager.usage == 0.0
    assert manager.take_copies() == []


@pytest.mark.parametrize("first_step", [1, 3, 5, 6])
def test_the_state_at_the_prompt_s_last_unit_is_kept_wherever_the_steps_before_it_ended(first_step: int) -> None:
    manager = manager_of([FullAttentionSpec(block_size=8), MambaSpec(block_size=8)], hash_block_size=2)
    chunking = PrefillChunking(manager.coordinator)
    first, ends = request_of(manager, "first", 8), []
    budget = first_step
    while first.num_computed_tokens < 8:
        start = first.num_computed_tokens
        run(manager, first, chunking.clip(first, start, min(budget, 8 - start)))
        ends.append(first.num_computed_tokens)
        budget = 8
    assert 6 in ends, "chunking ends a step there"
    manager.free(first)
    manager.new_step_starts()
    assert manager.get_computed_blocks(request_of(manager, "again", 8)).num_tokens == 6


def test_a_block_that_this_step_still_writes_is_not_copied_in_this_step() -> None:
    """Copies run before the forward pass, so their source must be complete when the step begins."""
    manager = manager_of([FULL, STATE], hash_block_size=2)
    first = request_of(manager, "first", 7)
    for new in (4, 2, 1):
        run(manager, first, new)
    manager.evict_blocks([tables(manager, first)[0][1]])
    manager.free(first)

    manager.new_step_starts()
    second, third = request_of(manager, "second", 7), request_of(manager, "third", 7)
    found = manager.get_computed_blocks(second)
    assert found.num_tokens == 4
    assert manager.allocate_slots(second, 2, 4, found.blocks) is not None
    written_now = tables(manager, second)[0][1]
    found = manager.get_computed_blocks(third)
    if found.num_tokens == 6:
        manager.allocate_slots(third, 1, 6, found.blocks)
    assert written_now not in [source for source, _ in manager.take_copies()]


# ---- prefix numbers that are recycled


def test_a_request_admitted_with_an_old_path_never_keys_under_another_prefix() -> None:
    manager = manager_of([FULL], num_blocks=200)
    manager.coordinator.index = PrefixIndex(room=4)
    delayed = request_of(manager, "delayed", 9)
    assert manager.get_computed_blocks(delayed).num_tokens == 0
    strangers = [request_of(manager, f"s{i}", 25, first=1000 * (i + 1)) for i in range(3)]
    manager.get_computed_blocks(strangers[0])
    manager.get_computed_blocks(strangers[1])
    manager.allocate_slots(delayed, 0, num_external_computed_tokens=8, delay_cache_blocks=True)
    delayed.num_computed_tokens, delayed.status = 8, RequestStatus.LOADING
    manager.get_computed_blocks(strangers[2])
    manager.cache_blocks(delayed, 8)
    check_invariants(manager)
    for stranger in strangers:
        assert manager.get_computed_blocks(stranger).num_tokens == 0
    assert manager.get_computed_blocks(request_of(manager, "twin", 9)).num_tokens == 8


def test_hits_survive_any_number_of_sweeps() -> None:
    manager = manager_of([FULL, WINDOW], num_blocks=400)
    manager.coordinator.index = PrefixIndex(room=4)
    first = request_of(manager, "first", 41)
    run(manager, first, 41)
    manager.free(first)
    for i in range(10):
        other = request_of(manager, f"o{i}", 13, first=1000 * (i + 1))
        run(manager, other, 13)
        manager.free(other)
    assert manager.get_computed_blocks(request_of(manager, "again", 41)).num_tokens == 40
    assert len(manager.coordinator.index) < 200


# ---- the whole-sequence check

SIZES = st.integers(1, 4)
ANY_SPEC = st.one_of(
    st.builds(FullAttentionSpec, block_size=SIZES),
    st.builds(SlidingWindowSpec, block_size=SIZES, window=st.integers(1, 12)),
    st.builds(ChunkedLocalAttentionSpec, block_size=SIZES, chunk=st.integers(1, 12)),
    st.builds(MambaSpec, block_size=SIZES),
)


@given(
    st.lists(ANY_SPEC, min_size=1, max_size=4),
    st.integers(2, 60),
    st.integers(2, 40),
    st.integers(1, 20),
    st.integers(0, 40),
)
def test_a_request_that_the_whole_sequence_check_lets_in_never_runs_out(
    specs: list[KVCacheSpec], num_blocks: int, num_tokens: int, budget: int, warm: int
) -> None:
    """Alone in the pool, with or without a hit, in chunks of at most the bound it was admitted with."""
    manager = manager_of(specs, num_blocks, max_in_flight_tokens=budget, max_model_len=60)
    chunking = PrefillChunking(manager.coordinator)

    def compute(request: Request, upto: int, **options: object) -> bool:
        while request.num_computed_tokens < upto:
            start = request.num_computed_tokens
            if not start:
                start = manager.get_computed_blocks(request).num_tokens
            new = chunking.clip(request, start, min(budget, max(upto - start, 1)))
            first = not request.num_computed_tokens
            if not run(manager, request, new, **(options if first else {})):
                assert first or not options, "let in, then refused"
                return False
        return True

    if warm:
        before = request_of(manager, "before", min(warm, num_tokens))
        compute(before, before.num_tokens)
        manager.free(before)
    request = request_of(manager, "r", num_tokens)
    compute(request, num_tokens, full_sequence_must_fit=True)


# ---- a plug-in that raises


@pytest.mark.parametrize("call", ["extend", "register", "settle", "adopt"])
def test_a_step_in_which_a_manager_raises_is_rolled_back(call: str) -> None:
    manager = manager_of([FULL, WINDOW, STATE])
    first = request_of(manager, "first", 9)
    run(manager, first, 8)
    manager.new_step_starts()
    second = request_of(manager, "second", 20)
    found = manager.get_computed_blocks(second)
    assert found.num_tokens == 8
    before = snapshot(manager)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("a mistake in a plug-in")

    managers, sound = manager.coordinator.managers, manager.coordinator.managers[1]
    managers[1] = type("PlugIn", (SlidingWindowManager,), {call: fail})(sound.spec, sound.pool, sound.rules)
    with pytest.raises(ManagerError, match=r"PlugIn.*a mistake in a plug-in"):
        manager.allocate_slots(second, 12, 8, found.blocks)
    managers[1] = sound
    check_invariants(manager)
    after = snapshot(manager)
    assert (after.refs, after.tables, after.copies) == (before.refs, before.tables, before.copies)
    assert set(after.queue) == set(before.queue)
    assert manager.allocate_slots(second, 12, 8, found.blocks) is not None
    check_invariants(manager)


# ---- figures


def test_figures_count_tokens_and_blocks_per_group() -> None:
    manager = manager_of([FULL, WINDOW])
    first = request_of(manager, "first", 9)
    run(manager, first, 9)
    second = request_of(manager, "second", 9)
    run(manager, second, 1)
    stats = manager.stats()
    assert stats.num_blocks == 59
    assert stats.blocks_free == manager.num_free_blocks
    assert stats.usage == manager.usage
    for group in stats.groups:
        assert (group.tokens_asked, group.tokens_hit) == (18, 8)
        assert group.hit_rate == pytest.approx(8 / 18)
    assert stats.groups[0].blocks_live == 4
