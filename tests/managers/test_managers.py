"""The managers: what dies, what a step needs, what gets a key. The generic one is the oracle of all others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvhybrid.managers import registry
from kvhybrid.managers.arrays import int_array
from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.managers.pool.block_pool import BlockPool
from kvhybrid.managers.retention.base import Retention
from kvhybrid.managers.rules import GroupRules
from kvhybrid.managers.table import BlockTable
from kvhybrid.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    PrivateStateSpec,
    SlidingWindowSpec,
)

SIZES = st.integers(1, 5)
EXTENTS = st.integers(1, 14)
DECODER_SPECS = st.one_of(
    st.builds(FullAttentionSpec, block_size=SIZES),
    st.builds(SlidingWindowSpec, block_size=SIZES, window=EXTENTS),
    st.builds(ChunkedLocalAttentionSpec, block_size=SIZES, chunk=EXTENTS),
    st.builds(MambaSpec, block_size=SIZES),
    st.builds(PrivateStateSpec, block_size=SIZES),
)
CACHEABLE = DECODER_SPECS.filter(lambda spec: spec.cacheable)
TOKENS = st.integers(0, 60)


class Retained(NamedTuple):
    """A request as retention sees it."""

    num_prompt_tokens: int
    shared_prefix_boundary: int


def manager_of(
    spec: KVCacheSpec,
    *,
    own: bool = True,
    num_groups: int = 1,
    alignment: int | None = None,
    drops: bool = False,
    retention: Retention | None = None,
) -> SingleTypeKVCacheManager:
    """The manager registered for ``spec``, or the generic one."""
    alignment = alignment or spec.block_size
    rules = GroupRules(
        groups=tuple(range(num_groups)),
        block_size=spec.block_size,
        hash_unit=spec.block_size,
        alignment=alignment,
        sub_block_hits=False,
        drops=drops,
        retention=retention or Retention(None, alignment),
    )
    manager_class = registry.manager_of(type(spec)) if own else SingleTypeKVCacheManager
    pool = BlockPool(400, num_groups)
    pool.keys.grow(200)
    manager: SingleTypeKVCacheManager = manager_class(spec, pool, rules)
    return manager


def fill(manager: SingleTypeKVCacheManager, table: BlockTable, main: int, slots: int, total: int = 0) -> list[int]:
    """Do a step from ``total`` to ``main`` tokens; returns the entries that it filled."""
    growth = manager.growth(table, 0, total, main, slots, False)
    for i in range(len(manager.groups)):
        fresh = manager.pool.take(len(growth.fresh))[None]
        manager.extend(table, slice(i, i + 1), growth, fresh[:, :0], fresh, 0)
    manager.settle(table, total, main)
    return list(growth.fresh)


def spans_of(spans: list[tuple[int, int]]) -> set[int]:
    return {j for start, end in spans for j in range(start, end)}


# ---- what dies


@given(DECODER_SPECS, st.lists(TOKENS, min_size=1, max_size=6), st.integers(1, 60))
def test_a_block_is_dead_when_no_later_token_reads_it(spec: KVCacheSpec, settled: list[int], held: int) -> None:
    tables, gone = [], []
    for own in (True, False):
        manager, table = manager_of(spec, own=own), BlockTable(1)
        table.resize(-(-held // spec.block_size))
        gone.append([spans_of(manager.dead(table, n)) for n in sorted(settled)])
        tables.append(table)
    assert gone[0] == gone[1]
    assert tables[0].dropped == tables[1].dropped
    everything: set[int] = set()
    for n, dead in zip(sorted(settled), gone[0], strict=True):
        read_later = {t for p in range(n, 80) for part in spec.live(p) for t in part if t < n}
        live = {t // spec.block_size for t in read_later}
        expected = {j for j in range(n // spec.block_size) if j not in live} & set(range(tables[0].length))
        everything |= dead
        assert everything == expected
    assert sum(map(len, gone[0])) == len(everything), "no block dies twice"


def test_full_attention_and_cross_attention_keep_everything() -> None:
    for spec in (FullAttentionSpec(block_size=4), CrossAttentionSpec(block_size=4)):
        manager, table = manager_of(spec), BlockTable(1)
        table.resize(10)
        assert manager.dead(table, 40) == []


def test_dead_blocks_go_back_tail_first_and_leave_null_entries() -> None:
    manager, table = manager_of(SlidingWindowSpec(block_size=4, window=5)), BlockTable(1)
    fill(manager, table, 16, 16)
    assert table.row(0).tolist() == [1, 2, 3, 4]
    manager.drop(table, slice(0, 1), manager.dead(table, 16))
    assert table.row(0).tolist() == [0, 0, 0, 4]
    assert manager.pool.free_queue()[:4] == [3, 2, 1, 5]


def test_a_request_gives_back_its_tail_first() -> None:
    manager, table = manager_of(FullAttentionSpec(block_size=4)), BlockTable(1)
    fill(manager, table, 12, 12)
    manager.release(table, slice(0, 1))
    assert manager.pool.free_queue()[:4] == [3, 2, 1, 4]


# ---- what a step needs


@given(DECODER_SPECS, TOKENS, TOKENS, st.integers(0, 5), st.integers(0, 12), st.booleans())
def test_what_a_step_needs_is_the_same_for_the_generic_manager(
    spec: KVCacheSpec, total: int, new: int, lookahead: int, held: int, loads: bool
) -> None:
    found = []
    for own in (True, False):
        manager, table = manager_of(spec, own=own), BlockTable(1)
        table.resize(held)
        growth = manager.growth(table, 0, total, total + new, total + new + lookahead, loads)
        found.append((list(growth.loaded), growth.loaded_length, list(growth.fresh), growth.length, growth.blocks))
    assert found[0] == found[1]


@given(DECODER_SPECS, st.lists(st.tuples(st.integers(1, 15), st.integers(0, 4)), min_size=1, max_size=8))
def test_a_step_has_blocks_for_all_that_it_reads_and_writes(
    spec: KVCacheSpec, steps: list[tuple[int, int]]
) -> None:
    manager, table, total = manager_of(spec, num_groups=2), BlockTable(2), 0
    for new, lookahead in steps:
        main = total + new
        spans = manager.dead(table, total)
        for i in range(2):
            manager.drop(table, slice(i, i + 1), spans)
        fill(manager, table, main, main + (0 if spec.state else lookahead), total)
        touched = {j for p in (total, main if spec.state else total) for part in spec.live_blocks(p) for j in part}
        if not spec.state:
            touched |= set(range(total // spec.block_size, -(-main // spec.block_size)))
        for i in range(2):
            assert all(table.row(i)[j] for j in touched)
        assert (table.row(0) > 0).tolist() == (table.row(1) > 0).tolist(), "groups go in lockstep"
        total = main


def test_full_attention_takes_the_blocks_that_are_missing() -> None:
    manager, table = manager_of(FullAttentionSpec(block_size=16)), BlockTable(1)
    assert fill(manager, table, 33, 33) == [0, 1, 2]
    assert fill(manager, table, 48, 48, 33) == []
    assert fill(manager, table, 49, 49, 48) == [3]


def test_lookahead_slots_are_reused_after_a_rejection() -> None:
    manager, table = manager_of(FullAttentionSpec(block_size=4)), BlockTable(1)
    assert fill(manager, table, 4, 9) == [0, 1, 2]
    assert fill(manager, table, 5, 6, 4) == []


def test_a_state_step_takes_the_block_of_its_end_alone() -> None:
    manager, table = manager_of(MambaSpec(block_size=4)), BlockTable(1)
    assert fill(manager, table, 8, 8) == [1]
    assert table.row(0).tolist() == [0, 1]
    assert fill(manager, table, 16, 16, 8) == [3]
    assert table.row(0).tolist() == [0, 1, 0, 2]
    assert fill(manager, table, 17, 17, 16) == [4]
    assert fill(manager, table, 18, 18, 17) == []


def test_encoder_blocks_are_taken_once() -> None:
    manager, table = manager_of(CrossAttentionSpec(block_size=4)), BlockTable(1)
    assert fill(manager, table, 10, 10) == [0, 1, 2]
    assert fill(manager, table, 0, 0) == []


# ---- what gets a key


@st.composite
def retentions(draw: st.DrawFn, common: int) -> Retention:
    interval = draw(st.sampled_from([None, 0, common, 2 * common, 3 * common]))
    return Retention(interval, common, draw(st.booleans()))


def keyed_entries(manager: SingleTypeKVCacheManager, table: BlockTable) -> list[int]:
    row = table.row(0)
    return [j for j in range(len(row)) if row[j] and manager.pool.keys.number_of[row[j]]]


@given(CACHEABLE.filter(lambda spec: not spec.state), st.data())
def test_keys_are_the_same_for_the_generic_manager(spec: KVCacheSpec, data: st.DataObject) -> None:
    common = spec.block_size * data.draw(st.integers(1, 3))
    retention = data.draw(retentions(common))
    drops = retention.draft and data.draw(st.booleans())
    prompt = data.draw(st.integers(1, 50))
    steps = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=4))
    request = Retained(prompt, data.draw(st.sampled_from([0, 8, 20])))
    path = np.arange(1, 100, dtype=np.int32)
    found = []
    for own in (True, False):
        manager = manager_of(spec, own=own, alignment=common, drops=drops, retention=retention)
        table, main = BlockTable(1), 0
        for new in steps:
            fill(manager, table, main + new, main + new, main)
            main += new
            manager.register(table, path, main, request)
        found.append(keyed_entries(manager, table))
    assert found[0] == found[1]


@given(st.integers(1, 5), EXTENTS, st.integers(1, 3), st.integers(1, 60), st.sampled_from([None, 0, 1, 2]))
def test_a_window_keeps_what_a_retained_position_reads_and_no_more(
    size: int, window: int, factor: int, prompt: int, interval: int | None
) -> None:
    spec, common = SlidingWindowSpec(block_size=size, window=window), size * factor
    step = common if interval is None else interval * common
    manager = manager_of(spec, alignment=common, retention=Retention(None if interval is None else step, common))
    table = BlockTable(1)
    fill(manager, table, prompt, prompt)
    manager.register(table, np.arange(1, 100, dtype=np.int32), prompt, Retained(prompt, 0))
    kept = set(range(step, prompt + 20 * common, step)) if step else set()
    kept.add((prompt - 1) // common * common)
    read = {t // size for p in kept for part in spec.live(p) for t in part}
    assert keyed_entries(manager, table) == [j for j in range(prompt // size) if j in read]


@given(st.integers(1, 5), st.lists(st.integers(1, 14), min_size=1, max_size=5))
def test_a_state_is_keyed_only_where_a_step_ended_on_a_block(size: int, steps: list[int]) -> None:
    manager, table, main = manager_of(MambaSpec(block_size=size)), BlockTable(1), 0
    path = np.arange(1, 100, dtype=np.int32)
    for new in steps:
        fill(manager, table, main + new, main + new, main)
        main += new
        manager.register(table, path, main, Retained(1000, 0))
    ends = np.cumsum(steps).tolist()
    assert keyed_entries(manager, table) == [end // size - 1 for end in ends if end % size == 0]


def test_a_state_keyed_in_this_step_is_not_readable_yet() -> None:
    manager, table = manager_of(MambaSpec(block_size=4)), BlockTable(1)
    fill(manager, table, 8, 8)
    manager.register(table, np.arange(1, 9, dtype=np.int32), 8, Retained(9, 0))
    assert manager.is_too_fresh(int_array([[0, 1]]), 8)
    assert not manager.is_too_fresh(int_array([[0, 2]]), 8)
    manager.written_from.clear()
    assert not manager.is_too_fresh(int_array([[0, 1]]), 8)


def test_null_entries_never_get_a_key() -> None:
    manager, table = manager_of(SlidingWindowSpec(block_size=4, window=5)), BlockTable(1)
    fill(manager, table, 16, 16)
    manager.drop(table, slice(0, 1), manager.dead(table, 16))
    manager.register(table, np.arange(1, 9, dtype=np.int32), 16, Retained(17, 0))
    assert keyed_entries(manager, table) == [3]
    assert manager.pool.keys.of(0) == []


# ---- the admission bound


@pytest.mark.parametrize("in_flight", [1, 4, 16])
@given(spec=DECODER_SPECS, length=st.integers(1, 60))
def test_a_request_never_holds_more_than_its_bound(in_flight: int, spec: KVCacheSpec, length: int) -> None:
    assume(not isinstance(spec, PrivateStateSpec))
    manager, table, total = manager_of(spec), BlockTable(1), 0
    cap = spec.admission_blocks(in_flight, length)
    while total < length:
        main = min(total + in_flight, length)
        manager.drop(table, slice(0, 1), manager.dead(table, total))
        fill(manager, table, main, main, total)
        assert int((table.row(0) > 0).sum()) <= cap
        total = main
