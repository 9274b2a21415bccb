"""Large pages that kinds carve: decisions equal to the oracle's, nothing lost, and counts that are exact."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvhybrid.managers.arrays import int_array
from kvhybrid.managers.eviction.base import ReuseOrderError
from kvhybrid.managers.eviction.lru import LRU
from kvhybrid.managers.pool.keys import BlockPoolError
from kvhybrid.managers.pool.lcm import LcmPoolConfig, LcmPools
from tests.managers.pool.slow_pages import SlowPages

ROOM = 4096


def pools_of(num_pages: int, *smalls: int, order: type[LRU] = LRU) -> LcmPools:
    pools = LcmPoolConfig(num_pages, smalls, (False,) * len(smalls)).build(len(smalls), order)
    assert isinstance(pools, LcmPools)
    for pool in pools.pools:
        pool.keys.grow(ROOM)
    return pools


def take(pools: LcmPools, *counts: int, held: list[list[int]] | None = None) -> list[list[int]]:
    """Take ``counts`` blocks of each kind, for a request that holds ``held``."""
    pools.will_take(counts, [int_array(ids)[None] for ids in held or [[] for _ in counts]])
    return [
        pool.take_rows([(int_array([kind]), count)])[0][0].tolist()
        for kind, (pool, count) in enumerate(zip(pools.pools, counts, strict=True))
    ]


def key(pools: LcmPools, kind: int, blocks: list[int], first: int) -> None:
    numbers = int_array(range(first, first + len(blocks)))
    pools.pools[kind].keys.register(kind, int_array(blocks), numbers)


class Traffic(RuleBasedStateMachine):
    """Requests take, key, adopt and release blocks of three kinds; the oracle does the same."""

    @initialize(num_pages=st.integers(2, 9), smalls=st.sampled_from([(1, 4, 6), (12, 1, 3), (2, 5, 1)]))
    def start(self, num_pages: int, smalls: tuple[int, ...]) -> None:
        self.pools = pools_of(num_pages, *smalls)
        self.slow = SlowPages(num_pages, smalls)
        self.requests: list[list[list[int]]] = []
        self.numbers = 0

    @rule(counts=st.lists(st.integers(0, 9), min_size=3, max_size=3), who=st.integers(0, 3), data=st.data())
    def step(self, counts: list[int], who: int, data: st.DataObject) -> None:
        """A request adopts cached blocks if it is new, and takes ``counts`` blocks."""
        new = who >= len(self.requests)
        mine: list[list[int]] = [[], [], []] if new else self.requests[who]
        hits: list[list[int]] = [[], [], []]
        if new:
            for kind in range(3):
                known = sorted(self.slow.keyed[kind])
                if known:
                    hits[kind] = data.draw(st.lists(st.sampled_from(known), unique=True, max_size=4))
        pinned = [self.pools.pins(kind, int_array(hits[kind])) for kind in range(3)]
        need = [
            count + pool.count_free(int_array(hit))
            for pool, count, hit in zip(self.pools.pools, counts, hits, strict=True)
        ]
        fits = self.pools.fits(need, pinned, 0)
        before = self.state()
        for kind in range(3):
            self.pools.pools[kind].hold(int_array(hits[kind]))
            self.slow.hold(kind, hits[kind])
        assert fits == self.slow.fits(counts)
        if not fits:
            with pytest.raises(BlockPoolError, match="large pages"):
                take(self.pools, *counts, held=hits)
            for kind in range(3):
                self.pools.pools[kind].release(int_array(hits[kind]))
                self.slow.release(kind, hits[kind])
            assert self.state()[0] == before[0]
            return
        held = [mine[kind] + hits[kind] for kind in range(3)]
        taken = take(self.pools, *counts, held=held)
        assert taken == self.slow.take(counts, held)
        for kind in range(3):
            mine[kind] += hits[kind] + taken[kind]
            chosen = [block for block in taken[kind] if data.draw(st.booleans())]
            key(self.pools, kind, chosen, self.numbers + 1)
            self.numbers += len(chosen)
            self.slow.keyed[kind] |= set(chosen)
        if new:
            self.requests.append(mine)

    @rule(who=st.integers(0, 3), kept=st.integers(0, 5))
    def release(self, who: int, kept: int) -> None:
        """A request releases its blocks, tail first, except the first ``kept`` of each kind."""
        if who < len(self.requests):
            for kind, blocks in enumerate(self.requests[who]):
                gone = blocks[kept:][::-1]
                self.pools.pools[kind].release(int_array(gone))
                self.slow.release(kind, gone)
                del blocks[kept:]
            if not kept:
                del self.requests[who]

    @rule(kind=st.integers(0, 2), data=st.data())
    def evict(self, kind: int, data: st.DataObject) -> None:
        known = sorted(self.slow.keyed[kind])
        if known:
            chosen = data.draw(st.lists(st.sampled_from(known), unique=True, max_size=6))
            self.pools.pools[kind].evict(chosen)
            self.slow.drop_keys(kind, chosen)

    @rule()
    def recount(self) -> None:
        """What a roll-back recomputes is what was counted."""
        before = self.state()[:3]
        for pool in self.pools.pools:
            pool.recount()
        assert self.state()[:3] == before

    @rule()
    def reset(self) -> None:
        if self.pools.reset():
            assert self.pools.num_free == self.pools._pages.num_pages - 1
            assert not self.requests or not any(any(kinds) for kinds in self.requests)
            self.slow = SlowPages(self.pools._pages.num_pages, self.slow.smalls)
            self.slow.spare = self.pools._pages._returned.copy()
            unused = range(self.pools._pages.num_pages - 1, self.pools._pages._next - 1, -1)
            self.slow.spare = [*unused, *self.slow.spare]

    def state(self) -> tuple[object, ...]:
        pages = self.pools._pages
        return (
            self.pools.num_free,
            self.pools.unused(),
            [pool.num_free for pool in self.pools.pools],
            list(pages.whole),
        )

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "slow"):
            return
        slow, pages = self.slow, self.pools._pages
        assert self.pools.num_free == slow.num_unheld
        assert sorted(pages.whole) == sorted(slow.whole)
        assert len(slow.spare) == pages.num_spare
        for kind, pool in enumerate(self.pools.pools):
            mine = slow.of(kind)
            assert np.flatnonzero(pages.owner == kind).tolist() == sorted(page.number for page in mine)
            assert pool.num_free == sum(page.smalls - len(page.held) for page in mine)
            assert self.pools.unused()[kind] == sum(len(page.unused) for page in mine)
            assert {b: int(pool.refs[b]) for b in np.flatnonzero(pool.refs).tolist()} == {
                block: count for page in mine for block, count in page.held.items()
            }
            assert sorted(pool.free_queue()) == sorted(
                block for page in mine for block in page.blocks if block not in page.held
            )


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_kind_fills_the_page_of_its_request_before_it_opens_another() -> None:
    pools = pools_of(4, 4, 2)
    (first, _), (second, _) = take(pools, 2, 0), take(pools, 2, 0)
    assert (first, second) == ([4, 5], [8, 9])
    more, _ = take(pools, 3, 0, held=[first, []])
    assert more == [6, 7, 12]


def test_a_page_goes_back_when_its_last_block_is_free_and_no_key_is_left() -> None:
    pools = pools_of(3, 4, 1)
    blocks, _ = take(pools, 3, 0)
    key(pools, 0, blocks[:1], 1)
    pools.pools[0].release(int_array(blocks[::-1]))
    assert (pools.num_free, pools._pages.num_spare) == (2, 1)
    pools.pools[0].evict(blocks[:1])
    assert pools._pages.num_spare == 2
    assert take(pools, 0, 2)[1] != []


def test_discarded_blocks_are_unused_and_their_page_goes_back() -> None:
    pools = pools_of(3, 4, 1)
    blocks, _ = take(pools, 3, 0)
    key(pools, 0, blocks, 1)
    pools.pools[0].release(int_array(blocks))
    pools.pools[0].discard(int_array(blocks[:2]))
    assert (pools.unused()[0], pools._pages.num_spare) == (3, 1)
    pools.pools[0].discard(int_array(blocks[2:]))
    assert (pools.unused()[0], pools._pages.num_spare) == (0, 2)


def test_whole_pages_are_evicted_oldest_first_whatever_their_kind() -> None:
    pools = pools_of(3, 2, 4)
    (a, _), (_, b) = take(pools, 2, 0), take(pools, 0, 4)
    key(pools, 0, a, 1)
    key(pools, 1, b, 1)
    pools.pools[1].release(int_array(b))
    pools.pools[0].release(int_array(a))
    _, again = take(pools, 0, 1)
    assert again == b[:1]
    assert pools.pools[0].keys.of(a[0]) == [1], "the page of the other kind was used later"
    assert pools.pools[1].evictions.tolist() == [0, 4]


def test_no_kind_takes_a_page_that_another_needs_in_the_same_step() -> None:
    """By Jenga's order alone, kind 0 would take the last spare page, although it has unused blocks elsewhere."""
    pools = pools_of(3, 4, 1)
    other, _ = take(pools, 1, 0)
    assert pools.fits([1, 1], [0, 0], 0)
    mine = take(pools, 1, 1)
    assert mine[0][0] // 4 == other[0] // 4
    assert mine[1] == [2]


def test_a_hit_on_a_whole_page_leaves_less_for_other_kinds() -> None:
    pools = pools_of(2, 4, 1)
    blocks, _ = take(pools, 1, 0)
    key(pools, 0, blocks, 1)
    pools.pools[0].release(int_array(blocks))
    assert pools.fits([0, 1], [0, 0], 0)
    assert not pools.fits([1, 1], [pools.pins(0, int_array(blocks)), 0], 0)
    assert pools.fits([4, 0], [pools.pins(0, int_array(blocks)), 0], 0)


def test_an_order_that_raises_leaves_every_block_where_it_was() -> None:
    class Failing(LRU):
        def pop(self, count: int) -> np.ndarray:
            raise KeyError("lost")

    pools = pools_of(2, 4, 1, order=Failing)
    blocks, _ = take(pools, 4, 0)
    key(pools, 0, blocks[1:], 1)
    pools.pools[0].release(int_array(blocks[1:]))
    with pytest.raises(ReuseOrderError, match="Failing raised KeyError"):
        take(pools, 2, 0)
    assert pools.pools[0].num_free == 3
    assert take(pools, 3, 0)[0] == blocks[1:], "the pool goes on in order of release"


def test_requests_at_once_share_pages_and_one_alone_may_straddle_them() -> None:
    config = LcmPoolConfig(6, (4, 3), (True, False))
    assert config.pages_for_one((6, 3)) == 3 + 1
    assert config.has_room((6, 3))
    assert not config.has_room((6, 9))
    assert config.num_requests((6, 3)) == 2  # 12 / 4 + 6 / 3 pages
    assert config.concurrency((6, 3)) == Fraction(5) / (Fraction(6, 4) + 1)
