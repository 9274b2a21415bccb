"""The search of each manager: equal to the generic one and to trying every length by brute force."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhybrid.managers.arrays import int_array
from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.managers.pool.block_pool import BlockPool
from kvhybrid.managers.registry import manager_of
from kvhybrid.managers.retention.base import Retention
from kvhybrid.managers.rules import GroupRules
from kvhybrid.managers.search import LiveSetSearch
from kvhybrid.specs import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)


@dataclass(frozen=True, kw_only=True)
class SinkWindow(AttentionSpec):
    """Two ranges: the first ``sinks`` tokens and a window. No manager knows it by name."""

    window: int
    sinks: int

    def live(self, p: int) -> tuple[range, ...]:
        sinks = min(self.sinks, p)
        return range(sinks), range(max(sinks, p - self.window + 1), p)


SIZES = st.integers(1, 5)
EXTENTS = st.integers(1, 14)
BUILT_IN = st.one_of(
    st.builds(FullAttentionSpec, block_size=SIZES),
    st.builds(SlidingWindowSpec, block_size=SIZES, window=EXTENTS),
    st.builds(ChunkedLocalAttentionSpec, block_size=SIZES, chunk=EXTENTS),
    st.builds(MambaSpec, block_size=SIZES),
)
ANY_SPEC = BUILT_IN | st.builds(SinkWindow, block_size=SIZES, window=EXTENTS, sinks=EXTENTS)


@dataclass(frozen=True)
class Case:
    """A spec, where its blocks are cached, and what hits must look like."""

    spec: KVCacheSpec
    cached: tuple[tuple[bool, ...], ...]
    """Per group, per block."""
    alignment: int
    drops: bool

    def rules(self) -> GroupRules:
        return GroupRules(
            groups=tuple(range(len(self.cached))),
            block_size=self.spec.block_size,
            hash_unit=self.spec.block_size,
            alignment=self.alignment,
            sub_block_hits=False,
            drops=self.drops,
            retention=Retention(None, self.alignment),
        )

    def search(self, manager_class: type[SingleTypeKVCacheManager]) -> LiveSetSearch:
        num_blocks = len(self.cached[0])
        pool = BlockPool(1 + len(self.cached) * num_blocks, len(self.cached))
        path = np.arange(1, num_blocks + 1, dtype=np.int32)
        pool.keys.grow(num_blocks + 1)
        for g, pattern in enumerate(self.cached):
            at = np.flatnonzero(pattern)
            pool.keys.register(g, int_array(1 + g * num_blocks + at), path[at])
        return manager_class(self.spec, pool, self.rules()).search(path)

    def block(self, g: int, j: int) -> int:
        return 1 + g * len(self.cached[0]) + j

    def resumes(self, p: int) -> bool:
        size = self.spec.block_size
        read = {t // size for part in self.spec.live(p) for t in part}
        if self.drops and not self.spec.state:
            read |= {t // size for t in range(p, p + size)}
        return all(j < len(pattern) and pattern[j] for pattern in self.cached for j in read)

    def longest(self, limit: int) -> int:
        lengths = range(0, min(limit, len(self.cached[0]) * self.spec.block_size) + 1, self.alignment)
        return max((p for p in lengths if self.resumes(p)), default=0)


@st.composite
def cases(draw: st.DrawFn, specs: st.SearchStrategy[KVCacheSpec]) -> Case:
    spec = draw(specs)
    num_blocks = draw(st.integers(1, 24))
    share = draw(st.sampled_from([0.5, 0.8, 0.95]))
    seed = draw(st.integers(0, 2**32 - 1))
    cached = np.random.default_rng(seed).random((draw(st.integers(1, 2)), num_blocks)) < share
    patterns = tuple(tuple(row) for row in cached.tolist())
    return Case(spec, patterns, spec.block_size * draw(st.integers(1, 3)), draw(st.booleans()))


def limits(case: Case) -> range:
    return range(len(case.cached[0]) * case.spec.block_size + 3)


@given(cases(ANY_SPEC))
def test_the_generic_search_finds_the_longest_length_that_the_live_set_allows(case: Case) -> None:
    for limit in limits(case):
        assert case.search(SingleTypeKVCacheManager).at_most(limit) == case.longest(limit)


@given(cases(BUILT_IN))
def test_a_manager_of_its_own_is_faster_and_never_different(case: Case) -> None:
    manager_class = manager_of(type(case.spec))
    assert manager_class is not SingleTypeKVCacheManager
    for limit in limits(case):
        assert case.search(manager_class).at_most(limit) == case.longest(limit)


@given(cases(BUILT_IN), st.data())
def test_one_search_serves_falling_limits(case: Case, data: st.DataObject) -> None:
    """The joint search asks again and again, each time for less."""
    asked = sorted(data.draw(st.lists(st.sampled_from(limits(case)), min_size=1)), reverse=True)
    for manager_class in (manager_of(type(case.spec)), SingleTypeKVCacheManager):
        search = case.search(manager_class)
        assert [search.at_most(limit) for limit in asked] == [case.longest(limit) for limit in asked]


@given(cases(ANY_SPEC))
def test_a_hit_has_blocks_where_it_is_read_and_null_entries_elsewhere(case: Case) -> None:
    p = case.search(SingleTypeKVCacheManager).at_most(limits(case)[-1])
    live = {t // case.spec.block_size for part in case.spec.live(p) for t in part}
    row = range(p // case.spec.block_size)
    expected = [[case.block(g, j) if j in live else 0 for j in row] for g in range(len(case.cached))]
    classes = [SingleTypeKVCacheManager]
    if case.spec.kind:
        classes.append(manager_of(type(case.spec)))
    for manager_class in classes:
        search = case.search(manager_class)
        search.at_most(limits(case)[-1])
        assert search.blocks(p).tolist() == expected


@given(cases(ANY_SPEC))
def test_a_hit_of_null_entries_alone_reads_nothing(case: Case) -> None:
    search = case.search(SingleTypeKVCacheManager)
    for p in range(0, limits(case)[-1], case.spec.block_size):
        assert search.reads_any(p) is any(len(part) for part in case.spec.live(p))


@pytest.mark.parametrize(
    ("spec", "pattern", "limit", "hit"),
    [
        (FullAttentionSpec(block_size=4), "1101", 16, 8),
        (FullAttentionSpec(block_size=4), "1111", 15, 12),
        (SlidingWindowSpec(block_size=4, window=5), "0001", 16, 16),
        (SlidingWindowSpec(block_size=4, window=6), "0001", 16, 0),
        (SlidingWindowSpec(block_size=4, window=9), "1001", 16, 4),
        (SlidingWindowSpec(block_size=4, window=1), "0000", 15, 12),
        (ChunkedLocalAttentionSpec(block_size=4, chunk=8), "0010", 16, 16),
        (ChunkedLocalAttentionSpec(block_size=4, chunk=8), "0010", 15, 12),
        (ChunkedLocalAttentionSpec(block_size=4, chunk=16), "1000", 15, 4),
        (MambaSpec(block_size=4), "0110", 16, 12),
        (MambaSpec(block_size=4), "0110", 11, 8),
    ],
)
def test_hits_by_hand(spec: KVCacheSpec, pattern: str, limit: int, hit: int) -> None:
    case = Case(spec, (tuple(c == "1" for c in pattern),), spec.block_size, drops=False)
    assert case.longest(limit) == hit
    assert case.search(manager_of(type(spec))).at_most(limit) == hit


@pytest.mark.parametrize(("pattern", "hit"), [("1111", 12), ("1110", 8), ("1000", 0), ("0111", 0)])
def test_a_draft_model_recomputes_the_last_block_of_a_hit(pattern: str, hit: int) -> None:
    case = Case(FullAttentionSpec(block_size=4), (tuple(c == "1" for c in pattern),), 4, drops=True)
    assert case.search(manager_of(type(case.spec))).at_most(16) == hit
