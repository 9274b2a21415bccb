"""Caches with a pool for each kind of block: what fits, failures of plug-ins, and figures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhybrid.cache.config import CacheConfigError, KVCacheConfig, KVCacheGroup
from kvhybrid.cache.errors import ManagerError
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.managers.eviction.lru import LRU
from kvhybrid.managers.pool.base import PoolConfig
from kvhybrid.managers.pool.lcm import LcmPoolConfig
from kvhybrid.managers.pool.small_pages import SmallPagePool
from kvhybrid.managers.pool.static import StaticPoolConfig
from kvhybrid.specs import FullAttentionSpec, MambaSpec, SlidingWindowSpec

BLOCK = 4
SPECS = (
    FullAttentionSpec(block_size=BLOCK),
    SlidingWindowSpec(block_size=BLOCK, window=6),
    MambaSpec(block_size=BLOCK),
)
GROUPS = tuple(KVCacheGroup(spec.kind, spec) for spec in SPECS)
POOLS = {
    "static": StaticPoolConfig((20, 9, 7)),
    "lcm": LcmPoolConfig(9, (6, 3, 2), (False, True, True)),
}


def cache_of(pools: PoolConfig, **options: object) -> KVCacheManager:
    config = KVCacheConfig(GROUPS, pools.num_units, pools=pools)
    return KVCacheManager(config, max_model_len=64, max_in_flight_tokens=16, **options)  # type: ignore[arg-type]


def check(cache: KVCacheManager, running: Sequence[Request]) -> None:
    """Every reference is an entry of a table, and the counts of the pools are those of their blocks."""
    for kind, pool in enumerate(cache.coordinator.pools):
        expected = np.zeros(pool.num_blocks, np.int64)
        for request in running:
            np.add.at(expected, cache.get_block_ids(request.request_id)[kind], 1)
        expected[0] = 0
        assert pool.refs.tolist() == expected.tolist()
        counted = (pool.num_free, cache.coordinator.groups.unused(), cache.num_free_blocks)
        assert counted[0] == len(pool.free_queue())
        if isinstance(pool, SmallPagePool):
            pool.recount()
            assert counted == (pool.num_free, cache.coordinator.groups.unused(), cache.num_free_blocks)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(POOLS)), st.lists(st.tuples(st.integers(0, 4), st.integers(1, 16)), max_size=40))
def test_random_traffic_never_breaks_a_pool(name: str, calls: list[tuple[int, int]]) -> None:
    """Requests of three prompts grow step by step; one that is refused is freed, and so is one that is done."""
    cache = cache_of(POOLS[name])
    running: dict[int, Request] = {}
    for made, (who, tokens) in enumerate(calls):
        cache.new_step_starts()
        request = running.get(who)
        if request is None:
            prompt = [1000 * (who % 3) + i for i in range(40)] + [made]
            request = running[who] = Request(f"request{made}", prompt, hasher=cache.hasher)
            hit = cache.get_computed_blocks(request)
            new = min(tokens, request.num_tokens - hit.num_tokens)
            granted = cache.allocate_slots(
                request, new, hit.num_tokens, hit.blocks, full_sequence_must_fit=tokens % 2 == 0
            )
            computed = hit.num_tokens + new
        else:
            new = min(tokens, request.num_tokens - request.num_computed_tokens)
            granted = cache.allocate_slots(request, new)
            computed = request.num_computed_tokens + new
        cache.release_copies()
        if granted is not None:
            request.status, request.num_computed_tokens = RequestStatus.RUNNING, computed
        if granted is None or computed == request.num_tokens:
            cache.free(running.pop(who))
        check(cache, list(running.values()))
    for request in running.values():
        cache.free(request)
    assert cache.usage == 0
    assert cache.reset_prefix_cache()
    assert cache.num_free_blocks == cache.config.num_usable


@pytest.mark.parametrize("name", POOLS)
def test_an_order_that_raises_is_rolled_back(name: str) -> None:
    class Failing(LRU):
        def pop(self, count: int) -> np.ndarray:
            raise KeyError("lost")

        def remove(self, ids: np.ndarray, releases: np.ndarray) -> None:
            raise KeyError("lost")

    cache = cache_of(POOLS[name], eviction=Failing)
    failures: list[str] = []
    for number in range(12):
        request = Request(f"request{number}", [100 * number + i for i in range(32)], hasher=cache.hasher)
        for start in (0, 16):
            request.num_computed_tokens = start
            try:
                cache.allocate_slots(request, 16)
            except ManagerError as error:
                failures.append(str(error))
                break
            request.status = RequestStatus.RUNNING
            check(cache, [request])
        check(cache, [request])
        cache.free(request)
    assert failures
    assert all("Failing raised KeyError" in failure for failure in failures)
    assert cache.usage == 0


@pytest.mark.parametrize("name", POOLS)
def test_a_watermark_leaves_its_share_of_the_memory_free(name: str) -> None:
    free = cache_of(POOLS[name], watermark=0.5)
    admitted = 0
    for number in range(9):
        request = Request(f"request{number}", list(range(100 * number, 100 * number + 8)), hasher=free.hasher)
        if free.allocate_slots(request, 8, has_scheduled_reqs=bool(number)) is None:
            break
        admitted += 1
    assert 0 < admitted < 9
    assert free.usage <= 0.5


def test_pools_that_do_not_fit_the_groups_are_refused() -> None:
    with pytest.raises(CacheConfigError, match="pools: 2 kinds and 5 blocks; the groups have 3 specs"):
        cache_of(StaticPoolConfig((2, 3)))
    private = tuple(KVCacheGroup(spec.kind, spec, private_blocks=5) for spec in SPECS)
    config = KVCacheConfig(private, 9, pools=POOLS["lcm"])
    with pytest.raises(CacheConfigError, match="private_blocks needs the shared pool"):
        KVCacheManager(config, max_model_len=64)
