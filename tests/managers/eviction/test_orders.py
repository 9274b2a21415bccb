"""Every built-in order of reuse does what a slow form of its definition does, and keeps to the contract."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.conformance.invariants import check_empty, check_invariants
from kvhybrid.managers.arrays import int_array
from kvhybrid.managers.eviction import orders
from kvhybrid.managers.eviction.base import BlockInfo
from kvhybrid.specs import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from tests.managers.eviction.oracles import (
    ARCOracle,
    FIFOOracle,
    LFUOracle,
    LifetimeOracle,
    Oracle,
    S3FIFOOracle,
    SieveOracle,
)

ORACLES: dict[str, type[Oracle]] = {
    "lru": Oracle,
    "lifetime": LifetimeOracle,
    "fifo": FIFOOracle,
    "lfu": LFUOracle,
    "sieve": SieveOracle,
    "s3_fifo": S3FIFOOracle,
    "arc": ARCOracle,
}
BUILT_IN = ["lru", "lifetime", "fifo", "lfu", "sieve", "s3_fifo", "arc", "joint"]
NUM_BLOCKS = 24
NUM_KEYS = 40


class Pair:
    """An order and its oracle, with the part that the pool plays."""

    def __init__(self, name: str) -> None:
        self.release_of = np.zeros(NUM_BLOCKS, np.int64)
        self.group_of = np.zeros(NUM_BLOCKS, np.int32)
        self.number_of = np.zeros(NUM_BLOCKS, np.int32)
        self.info = BlockInfo(self.release_of, self.group_of, self.number_of)
        self.order = orders.get(name)(self.info)
        self.oracle = ORACLES[name](NUM_BLOCKS, lambda b: (0, int(self.number_of[b])))
        self.unused = list(range(1, NUM_BLOCKS))
        self.held: list[int] = []
        self.free: list[int] = []
        self.releases = 0
        self.requests = [SimpleNamespace(name=i) for i in range(3)]

    def take(self, count: int, numbers: list[int]) -> None:
        """Hold ``count`` blocks under keys that no other block has: never-used ones, or reused ones."""
        count = min(count, len(self.unused) + len(self.free), len(numbers))
        taken = [self.unused.pop() for _ in range(min(count, len(self.unused)))]
        taken += self.pop(count - len(taken))
        in_use = {int(self.number_of[b]) for b in self.held + self.free}
        keys = [n for n in range(1, NUM_KEYS) if n not in in_use]
        for block, number in zip(taken, numbers, strict=False):
            self.number_of[block] = keys.pop(number % len(keys))
        self.held += taken

    def pop(self, count: int) -> list[int]:
        expected = list(self.order)[:count]
        found = self.order.pop(count).tolist() if count else []
        assert found == [self.oracle.pop() for _ in range(count)]
        assert found == expected, "iterating gives what pop gives"
        self.release_of[found] = 0
        self.free = [b for b in self.free if b not in found]
        return found

    def adopt(self, places: list[int]) -> None:
        blocks = self.held + self.free
        chosen = list(dict.fromkeys(blocks[p % len(blocks)] for p in places)) if blocks else []
        self.order.hit(int_array(chosen))
        self.oracle.hit(chosen)
        free = [b for b in chosen if b in self.free]
        releases = self.release_of[free]
        self.release_of[free] = 0
        if free:
            self.order.remove(int_array(free), releases)
        self.free = [b for b in self.free if b not in free]
        self.held += free

    def release(self, places: list[int], request: int, is_end: bool) -> None:
        chosen = list(dict.fromkeys(self.held[p % len(self.held)] for p in places)) if self.held else []
        if not chosen:
            return
        self.releases += 1
        self.release_of[chosen] = self.releases
        owner: Any = self.requests[request % 3]
        self.info.request, self.info.is_end = owner, is_end
        self.order.append(int_array(chosen), self.releases)
        self.oracle.append(chosen, request % 3, is_end)
        self.held = [b for b in self.held if b not in chosen]
        self.free += chosen


CALLS = st.lists(
    st.tuples(
        st.sampled_from(["take", "adopt", "release", "end"]),
        st.lists(st.integers(0, NUM_KEYS), min_size=1, max_size=10),
        st.integers(0, 2),
    ),
    max_size=60,
)


@pytest.mark.parametrize("name", ORACLES)
@given(calls=CALLS)
def test_an_order_gives_what_its_definition_says(name: str, calls: list[tuple[str, list[int], int]]) -> None:
    pair = Pair(name)
    for call, numbers, request in calls:
        if call == "take":
            pair.take(len(numbers), numbers)
        elif call == "adopt":
            pair.adopt(numbers)
        else:
            pair.release(numbers, request, is_end=call == "end")
        assert sorted(pair.order) == sorted(pair.free), "it has the free blocks, each once"
    pair.pop(len(pair.free))
    assert list(pair.order) == []


MODELS: dict[str, list[KVCacheSpec]] = {
    "full": [FullAttentionSpec(block_size=4)],
    "windows": [FullAttentionSpec(block_size=4), *[SlidingWindowSpec(block_size=4, window=9)] * 2],
    "states": [FullAttentionSpec(block_size=4), *[MambaSpec(block_size=4)] * 2],
    "chunks": [FullAttentionSpec(block_size=4), ChunkedLocalAttentionSpec(block_size=4, chunk=16)],
    "no prefix": [SlidingWindowSpec(block_size=4, window=9), MambaSpec(block_size=4)],
}


def hits_of(order: str, model: str, num_blocks: int, seed: int, check: bool) -> list[int]:
    """Prompts that branch off a few others, through a cache of ``num_blocks``; the newest two stay live."""
    groups = tuple(KVCacheGroup(f"group{i}", spec) for i, spec in enumerate(MODELS[model]))
    cache = KVCacheManager(KVCacheConfig(groups, num_blocks), max_model_len=200, eviction=order)
    rng, prompts, live, hits = random.Random(seed), [[0] * 8], list[Request](), []
    for i in range(60):
        base = rng.choice(prompts)
        prompt = base[: rng.randint(4, len(base))] + [i + 1] * rng.randint(1, 24)
        prompts.append(prompt[:90])
        request = Request(f"r{i}", prompts[-1], hasher=cache.hasher)
        cache.new_step_starts()
        found = cache.get_computed_blocks(request)
        tokens, at, blocks = found.num_tokens, found.num_tokens, found.blocks
        hits.append(tokens)
        for stop in sorted({min(at + 12, request.num_tokens), request.num_tokens // 4 * 4, request.num_tokens}):
            if stop <= at:
                continue
            while cache.allocate_slots(request, stop - at, tokens, blocks) is None:
                cache.free(live.pop(0))
                if not request.num_computed_tokens:
                    found = cache.get_computed_blocks(request)
                    hits[-1], blocks = found.num_tokens, found.blocks
                    tokens = at = found.num_tokens
            request.num_computed_tokens, request.status = stop, RequestStatus.RUNNING
            at, tokens, blocks = stop, 0, None
        if check:
            check_invariants(cache)
        live.append(request)
        if len(live) > 2:
            cache.free(live.pop(0))
    for request in live:
        cache.free(request)
    check_empty(cache)
    return hits


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("order", BUILT_IN)
def test_a_cache_keeps_its_invariants_and_no_order_beats_an_unlimited_cache(order: str, model: str) -> None:
    size = 40 * len(MODELS[model]) + 41
    for seed in range(2):
        found = hits_of(order, model, size, seed, check=True)
        assert sum(found) <= sum(hits_of("lru", model, 6_000, seed, check=False))


@pytest.mark.parametrize("order", BUILT_IN)
def test_a_pool_that_holds_everything_hits_the_same_with_every_order(order: str) -> None:
    assert hits_of(order, "states", 6_000, 0, False) == hits_of("lru", "states", 6_000, 0, False)


@pytest.mark.parametrize(
    ("order", "parameters", "message"),
    [
        ("joint", {"persistence": -1.0}, "persistence"),
        ("joint", {"slack": -1}, "slack"),
        ("s3_fifo", {"small": 1.5}, r"eviction.small must lie in \[0, 1\], found 1.5"),
    ],
)
def test_a_parameter_out_of_range_is_named(order: str, parameters: dict[str, Any], message: str) -> None:
    none = np.zeros(4, np.int32)
    with pytest.raises(ValueError, match=message):
        orders.maker(order, **parameters)(BlockInfo(none.astype(np.int64), none, none))
