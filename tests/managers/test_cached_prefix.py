"""Which blocks of a prompt are cached, each entry looked at once at most."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhybrid.managers.arrays import int_array
from kvhybrid.managers.cached_prefix import CachedPrefix
from kvhybrid.managers.kernel import is_native
from kvhybrid.managers.pool.block_pool import BlockPool

LONG = 256


def pool_and_prefix(patterns: list[list[bool]], stride: int = 1) -> tuple[BlockPool, CachedPrefix]:
    """Groups whose entry j is cached where their pattern says so; entry j's block is ``1000 * (g + 1) + j``."""
    entries = len(patterns[0])
    pool = BlockPool(20_000, len(patterns))
    path = np.arange(1, entries * stride + 1, dtype=np.int32)
    pool.keys.grow(entries * stride + 1)
    for group, pattern in enumerate(patterns):
        at = np.flatnonzero(pattern)
        pool.keys.register(group, int_array(1000 * (group + 1) + at), path[at * stride + stride - 1])
    return pool, CachedPrefix(pool, int_array(range(len(patterns))), path, stride)


def cached_prefix_of(patterns: list[list[bool]], stride: int = 1) -> CachedPrefix:
    return pool_and_prefix(patterns, stride)[1]


def test_an_entry_counts_as_cached_only_when_every_group_has_it() -> None:
    found = cached_prefix_of([[True, True, False], [True, False, True]])
    assert found.first_missing(0, 3) == 1
    assert found.last_missing(0, 3) == 2
    assert found.last_present(3, 1) == 0


def test_blocks_come_one_row_per_group() -> None:
    found = cached_prefix_of([[True] * 4, [True] * 4])
    assert found.blocks(1, 3).tolist() == [[1001, 1002], [2001, 2002]]
    assert found.blocks(2, 2).shape == (2, 0)


def test_an_empty_range_lacks_nothing() -> None:
    found = cached_prefix_of([[False] * 4])
    assert found.last_missing(2, 2) == -1
    assert found.first_missing(2, 2) == 2
    assert found.last_present(0, 1) == -1


only_native = pytest.mark.skipif(not is_native, reason="the numpy form looks at whole ranges")


@only_native
def test_questions_that_move_down_look_at_no_entry_twice() -> None:
    pool, found = pool_and_prefix([[True] * 700])
    for end in range(700, 64, -1):
        assert found.last_missing(end - 64, end) == -1
    assert pool.arrays.probes == 699


@only_native
def test_a_run_is_looked_for_in_strides_where_nothing_is_cached() -> None:
    pool, found = pool_and_prefix([[False] * 6400])
    assert found.last_run(6400, 64) == -1
    assert pool.arrays.probes == 100


@only_native
def test_the_same_question_costs_nothing_the_second_time() -> None:
    pool, found = pool_and_prefix([[j < 300 for j in range(700)]])
    assert (found.last_present(700, 1), found.last_run(700, 50)) == (299, 300)
    before = pool.arrays.probes
    assert (found.last_present(500, 1), found.last_run(400, 50)) == (299, 300)
    assert pool.arrays.probes == before


def test_a_request_shorter_than_a_stride_has_no_entries() -> None:
    pool = BlockPool(4, 1)
    assert CachedPrefix(pool, int_array([0]), int_array([]), 4).num_entries == 0


@pytest.mark.parametrize("stride", [1, 3])
@given(data=st.data())
def test_every_question_is_answered_as_by_looking_at_all_entries(stride: int, data: st.DataObject) -> None:
    num_groups = data.draw(st.integers(1, 3))
    entries = data.draw(st.integers(1, 2 * LONG + 40))
    seed = data.draw(st.integers(0, 2**32 - 1))
    share = data.draw(st.sampled_from([0.02, 0.5, 0.98, 0.999]))
    patterns = (np.random.default_rng(seed).random((num_groups, entries)) < share).tolist()
    found = cached_prefix_of(patterns, stride)
    cached = [all(pattern[j] for pattern in patterns) for j in range(entries)]
    step = data.draw(st.integers(1, 5))
    for _ in range(data.draw(st.integers(1, 12))):
        start = data.draw(st.integers(0, entries))
        end = data.draw(st.integers(start, entries))
        missing = [j for j in range(start, end) if not cached[j]]
        assert found.first_missing(start, end) == (missing[0] if missing else end)
        assert found.last_missing(start, end) == (missing[-1] if missing else -1)
        present = [j for j in range(end) if cached[j] and (j + 1) % step == 0]
        assert found.last_present(end, step) == (present[-1] if present else -1)
        length = data.draw(st.sampled_from([1, 2, 5, LONG - 1, LONG, LONG + 3]))
        runs = [e for e in range(length, end + 1) if all(cached[e - length : e])]
        assert found.last_run(end, length) == (runs[-1] if runs else -1)
        if not missing:
            expected = [list(range(1000 * (g + 1) + start, 1000 * (g + 1) + end)) for g in range(num_groups)]
            assert found.blocks(start, end).tolist() == expected
