"""The coordinators: the joint hit of several groups, found without trying every length."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhybrid.cache.blocks import PrefixHit
from kvhybrid.cache.config import CacheConfigError, KVCacheConfig, KVCacheGroup
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request
from kvhybrid.conformance.oracle import Oracle
from kvhybrid.managers.arrays import IntArray, int_array
from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.managers.kernel import is_native
from kvhybrid.managers.search import LiveSetSearch
from kvhybrid.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    PrivateStateSpec,
    SlidingWindowSpec,
)

FULL = FullAttentionSpec(block_size=4)
WINDOW = SlidingWindowSpec(block_size=4, window=8)
STATE = MambaSpec(block_size=4)
BLOCKS_PER_GROUP = 64

Keys = frozenset[tuple[int, int]]
"""(group, prefix length in tokens) of every cached block."""


@dataclass(frozen=True)
class Cached:
    """Groups, and which of their blocks are cached, registered by hand."""

    config: KVCacheConfig
    keys: Keys
    num_tokens: int

    def block(self, g: int, tokens: int) -> int:
        """The block of group ``g`` that is keyed under the first ``tokens`` tokens, 0 for none."""
        return 1 + g * BLOCKS_PER_GROUP + tokens // self.config.hash_unit if (g, tokens) in self.keys else 0

    def hit(self, limit: int) -> PrefixHit:
        manager = KVCacheManager(self.config, max_model_len=1000)
        request = Request("r", range(self.num_tokens), hasher=manager.hasher)
        numbers = manager.coordinator.numbers(request)
        unit = self.config.hash_unit
        for g, tokens in sorted(self.keys):
            at = int_array([self.block(g, tokens)])
            manager.block_pool.keys.register(g, at, numbers[tokens // unit - 1 : tokens // unit])
        return manager.coordinator.find_longest_cache_hit(request, limit)

    def oracle(self) -> Oracle:
        coordinator = KVCacheManager(self.config, max_model_len=1000).coordinator
        return Oracle(self.config, self.block, coordinator.sub_block_hits)

    def permuted(self, order: Sequence[int]) -> Cached:
        """The same with group ``order[i]`` in place ``i``."""
        groups = tuple(self.config.groups[g] for g in order)
        keys = frozenset((order.index(g), tokens) for g, tokens in self.keys)
        return Cached(replace(self.config, groups=groups), keys, self.num_tokens)


EXTENTS = st.integers(1, 16)


@st.composite
def specs(draw: st.DrawFn, unit: int, layout: str) -> KVCacheSpec:
    kind = draw(st.sampled_from(["full", "window", "window", "chunked", "mamba", "cross"]))
    factor = draw(st.integers(1, 3)) if layout == "mixed" else 1
    if layout == "sub_block" and kind in ("full", "mamba"):
        factor = 2
    size = unit * factor
    if kind == "window":
        return SlidingWindowSpec(block_size=size, window=draw(EXTENTS))
    if kind == "chunked":
        return ChunkedLocalAttentionSpec(block_size=size, chunk=draw(EXTENTS))
    return {"full": FullAttentionSpec, "mamba": MambaSpec, "cross": CrossAttentionSpec}[kind](block_size=size)


@st.composite
def caches(draw: st.DrawFn) -> Cached:
    unit = draw(st.integers(1, 3))
    layout = draw(st.sampled_from(["equal", "mixed", "sub_block"]))
    chosen = [draw(specs(unit, layout)) for _ in range(draw(st.integers(2, 4)))]
    if not any(spec.cacheable for spec in chosen):
        chosen[0] = FullAttentionSpec(block_size=unit)
    drafts = draw(st.sampled_from([False, True]))
    groups = tuple(
        KVCacheGroup(
            f"g{g}", spec, draft=drafts and spec.kind in ("full", "sliding_window") and draw(st.booleans())
        )
        for g, spec in enumerate(chosen)
    )
    config = KVCacheConfig(groups, 1 + BLOCKS_PER_GROUP * (len(groups) + 1), hash_block_size=unit)
    num_tokens = unit * draw(st.integers(4, 40))
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))
    share = draw(st.sampled_from([0.6, 0.85, 0.97]))
    sub_block = KVCacheManager(config, max_model_len=1000).coordinator.sub_block_hits
    keys = set()
    for g, group in enumerate(groups):
        if group.spec.cacheable:
            step = unit if sub_block and group.spec.sub_block else config.block_sizes[g]
            keys |= {(g, end) for end in range(step, num_tokens + 1, step) if rng.random() < share}
    return Cached(config, frozenset(keys), num_tokens)


@given(caches(), st.data())
def test_the_joint_hit_is_the_longest_length_from_which_every_group_can_resume(
    cached: Cached, data: st.DataObject
) -> None:
    oracle = cached.oracle()
    for limit in data.draw(st.lists(st.integers(0, cached.num_tokens), min_size=1, max_size=4)):
        hit = cached.hit(limit)
        assert hit.num_tokens == oracle.joint_hit(limit)
        for g, size in enumerate(cached.config.block_sizes):
            if hit.num_tokens and cached.config.groups[g].spec.cacheable:
                whole = hit.ids[g][: hit.num_tokens // size].tolist()
                if not oracle.sub_block:
                    assert whole == oracle.blocks(g, hit.num_tokens)
                assert len(hit.ids[g]) == -(-hit.num_tokens // size)
            else:
                assert hit.ids[g].tolist() == []


@given(caches(), st.data())
def test_the_order_of_the_groups_never_changes_the_hit(cached: Cached, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(cached.config.groups))))
    limit = data.draw(st.integers(0, cached.num_tokens))
    hit, other = cached.hit(limit), cached.permuted(order).hit(limit)
    assert other.num_tokens == hit.num_tokens
    assert sorted(other.own_tokens) == sorted(hit.own_tokens)


@given(caches(), st.data())
def test_own_hits_are_what_each_group_alone_could_give(cached: Cached, data: st.DataObject) -> None:
    oracle, limit = cached.oracle(), data.draw(st.integers(0, cached.num_tokens))
    hit = cached.hit(limit)
    cacheable = set(oracle.cacheable())
    by_spec = {
        g: [h for h in cacheable if cached.config.groups[h].spec == cached.config.groups[g].spec]
        for g in cacheable
    }
    for g, own in enumerate(hit.own_tokens):
        assert own == (oracle.longest(by_spec[g], limit) if g in cacheable else 0)
    if hit.cut_by is not None:
        assert max(hit.own_tokens) > hit.num_tokens
        assert hit.cut_by in cacheable


@given(caches(), st.data())
def test_the_junction_is_how_far_a_search_went_beyond_the_hit(cached: Cached, data: st.DataObject) -> None:
    """Full groups search first, then the others in order, each within what the earlier ones left."""
    oracle, limit = cached.oracle(), data.draw(st.integers(0, cached.num_tokens))
    groups = cached.config.groups
    sets = [tuple(m) for m in cached.config.lockstep() if groups[m[0]].spec.cacheable]
    sets.sort(key=lambda members: not groups[members[0]].spec.prefix)
    p, reach, agreed = limit, 0, 0
    while p and agreed < len(sets):
        members = sets[0]
        sets = [*sets[1:], members]
        found = oracle.longest(list(members), p)
        if found > reach and oracle.reads_any(members[0], found):
            reach = found
        agreed = 1 if found < p else agreed + 1
        p = found
    hit = cached.hit(limit)
    assert hit.num_tokens == p
    assert hit.junction == (reach if reach > p else 0)


@pytest.mark.parametrize(
    ("patterns", "hit", "junction", "cut_by"),
    [
        (("1111", "1111"), 16, 0, None),
        (("1111", "1100"), 8, 16, 1),
        (("1100", "1111"), 8, 0, 0),
        (("1111", "0000"), 0, 16, 1),
        (("0000", "1111"), 0, 0, 0),
        (("1111", "1010"), 4, 16, 1),
    ],
)
def test_the_hit_names_the_group_that_cut_it(
    patterns: tuple[str, str], hit: int, junction: int, cut_by: int | None
) -> None:
    config = KVCacheConfig((KVCacheGroup("full", FULL), KVCacheGroup("window", WINDOW)), 400)
    keys = frozenset((g, 4 * (i + 1)) for g, row in enumerate(patterns) for i, c in enumerate(row) if c == "1")
    found = Cached(config, keys, 16).hit(16)
    assert (found.num_tokens, found.junction, found.cut_by) == (hit, junction, cut_by)


def test_two_draft_groups_are_proved_again_when_one_of_them_cuts() -> None:
    """The margin above the hit must be there in both: the greatest common fixed point."""
    config = KVCacheConfig(
        (KVCacheGroup("full", FULL, draft=True), KVCacheGroup("window", WINDOW, draft=True)), 400
    )
    keys = {(0, 4 * i) for i in (1, 2, 3, 4, 5)} | {(1, 4 * i) for i in (3, 4, 5)}
    assert Cached(config, frozenset(keys), 24).hit(23).num_tokens == 16
    assert Cached(config, frozenset(keys - {(1, 20)}), 24).hit(23).num_tokens == 0, (
        "12 reads block 2 of the window"
    )


# ---- the work of a search


def probes_of_a_look_up(num_blocks: int, gap: str) -> tuple[int, int]:
    """Entries looked at, and searches asked, by a look-up over seven groups whose cached blocks alternate."""
    windows = [SlidingWindowSpec(block_size=1, window=2 + i) for i in range(6)]
    groups = tuple(KVCacheGroup(f"g{i}", s) for i, s in enumerate([FullAttentionSpec(block_size=1), *windows]))
    manager = KVCacheManager(KVCacheConfig(groups, 7 * num_blocks + 1), max_model_len=num_blocks + 1)
    request = Request("r", range(num_blocks + 1), hasher=manager.hasher)
    numbers = manager.coordinator.numbers(request)[:num_blocks]
    for g in range(len(groups)):
        cached = {
            "alternating": [j for j in range(num_blocks) if g == 0 or j % 2 == g % 2],
            "pairs": [j for j in range(num_blocks) if g == 0 or j % 3 != g % 3],
            "steps": [j for j in range(num_blocks) if g == 0 or j % (g + 1)],
            "nothing": [],
        }[gap]
        at = int_array(cached)
        manager.block_pool.keys.register(g, at + 1 + g * num_blocks, numbers[at])
    asked: list[int] = []
    managers = manager.coordinator.managers
    managers[:] = [counting(m, asked) for m in managers]
    manager.get_computed_blocks(request)
    return manager.block_pool.arrays.probes, len(asked)


def counting(manager: SingleTypeKVCacheManager, asked: list[int]) -> SingleTypeKVCacheManager:
    """The same manager, noting every length that its searches are asked for."""

    class CountedSearch(LiveSetSearch):
        def __init__(self, search: LiveSetSearch) -> None:
            self.search = search
            self.blocks = search.blocks  # type: ignore[method-assign]
            self.reads_any = search.reads_any  # type: ignore[method-assign]

        def at_most(self, limit: int) -> int:
            asked.append(limit)
            return self.search.at_most(limit)

    class Counting(type(manager)):  # type: ignore[misc]
        def search(self, path: IntArray) -> LiveSetSearch:
            return CountedSearch(super().search(path))

    return Counting(manager.spec, manager.pool, manager.rules)


@pytest.mark.skipif(not is_native, reason="the numpy form looks at whole ranges")
@pytest.mark.parametrize("gap", ["alternating", "pairs", "steps", "nothing"])
def test_the_work_of_a_look_up_grows_linearly_with_the_prompt(gap: str) -> None:
    sizes = (2048, 4096, 8192)
    probes, asked = zip(*(probes_of_a_look_up(size, gap) for size in sizes), strict=True)
    for size, count in zip(sizes, probes, strict=True):
        assert count <= 2 * 7 * size, "a search and the run that it looks for may see an entry each"
    assert probes[2] <= 4 * probes[0] + 7 * 256
    assert asked[2] <= 4 * asked[0] + 100


# ---- which coordinator, and what is refused


@pytest.mark.parametrize(
    ("specs", "enable_caching", "name"),
    [
        ((FULL,), False, "KVCacheCoordinatorNoPrefixCache"),
        ((FULL,), True, "UnitaryKVCacheCoordinator"),
        ((FULL, WINDOW), True, "HybridKVCacheCoordinator"),
        ((FULL, WINDOW), False, "KVCacheCoordinatorNoPrefixCache"),
    ],
)
def test_one_of_three_coordinators_serves(specs: tuple[KVCacheSpec, ...], enable_caching: bool, name: str) -> None:
    groups = tuple(KVCacheGroup(f"g{i}", spec) for i, spec in enumerate(specs))
    manager = KVCacheManager(KVCacheConfig(groups, 10), max_model_len=40, enable_caching=enable_caching)
    assert type(manager.coordinator).__name__ == name


def test_groups_of_one_spec_share_a_manager_and_go_in_lockstep() -> None:
    groups = tuple(KVCacheGroup(f"g{i}", spec) for i, spec in enumerate([WINDOW, FULL, WINDOW, STATE, WINDOW]))
    manager = KVCacheManager(KVCacheConfig(groups, 100), max_model_len=40)
    assert [m.groups for m in manager.coordinator.managers] == [(0, 2, 4), (1,), (3,)]
    request = Request("r", range(9), hasher=manager.hasher)
    assert manager.allocate_slots(request, 9) is not None
    rows = [row.tolist() for row in manager.get_block_ids("r")]
    assert rows == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [0, 0, 10], [11, 12, 13]], "groups take in index order"


@pytest.mark.parametrize(
    ("groups", "options", "message"),
    [
        ((), {}, "at least one group"),
        ((PrivateStateSpec(block_size=4),), {}, "turn prefix caching off"),
        ((CrossAttentionSpec(block_size=4),), {}, "needs a group that can be cached"),
        ((FULL,), {"hash_block_size": 2}, "must equal the block size of group 'g0', 4"),
        ((FULL, WINDOW), {"hash_block_size": 3}, "must divide the block size of group 'g0', 4"),
        ((FULL, WINDOW), {"context_parallel": 2}, "'g1'.*context parallelism"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_in_one_line(
    groups: tuple[KVCacheSpec, ...], options: dict[str, int], message: str
) -> None:
    config = KVCacheConfig(tuple(KVCacheGroup(f"g{i}", spec) for i, spec in enumerate(groups)), 10, **options)
    with pytest.raises(CacheConfigError, match=message) as refused:
        KVCacheManager(config, max_model_len=40)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"watermark": 1.01}, "watermark = 1.01"),
        ({"watermark": float("nan")}, "watermark = nan"),
        ({"watermark": -0.1}, "watermark = -0.1"),
        ({"max_model_len": 0}, "max_model_len = 0"),
        ({"retention_interval": 6}, "retention_interval = 6"),
        ({"retention_interval": -4}, "retention_interval = -4"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(arguments: dict[str, float], message: str) -> None:
    config = KVCacheConfig((KVCacheGroup("g0", FULL),), 10)
    with pytest.raises(CacheConfigError, match=message):
        KVCacheManager(config, **{"max_model_len": 40, **arguments})
