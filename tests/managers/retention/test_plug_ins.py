"""A retention policy as a plug-in: what its `positions` returns is kept, whatever the interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.managers.retention.base import Retention
from kvhybrid.specs import FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec

FULL = FullAttentionSpec(block_size=4)
KEEPERS = [
    SlidingWindowSpec(block_size=4, window=5),
    SlidingWindowSpec(block_size=4, window=64),
    MambaSpec(block_size=4),
]


class OnlyAtEight(Retention):
    def positions(self, *args: Any) -> list[int]:
        return [8]


class AlsoAtEight(Retention):
    def positions(self, *args: Any) -> list[int]:
        return [*super().positions(*args), 8]


def hits(policy: type[Retention], interval: int | None, spec: KVCacheSpec) -> list[int]:
    """The hits of prompts of 25, 13 and 9 tokens after one of 25 was computed, block by block."""
    groups = (KVCacheGroup("full", FULL), KVCacheGroup("other", spec))
    cache = KVCacheManager(
        KVCacheConfig(groups, 64), max_model_len=64, retention=policy, retention_interval=interval
    )
    compute(cache, range(25))
    return [cache.get_computed_blocks(Request("r", range(n), hasher=cache.hasher)).num_tokens for n in (25, 13, 9)]


def compute(cache: KVCacheManager, tokens: Sequence[int]) -> None:
    request = Request("first", tokens, hasher=cache.hasher)
    for end in (*range(4, len(tokens), 4), len(tokens)):
        cache.new_step_starts()
        assert cache.allocate_slots(request, end - request.num_computed_tokens) is not None
        request.num_computed_tokens, request.status = end, RequestStatus.RUNNING
    cache.free(request)


@pytest.mark.parametrize("interval", [None, 0, 4, 12])
@pytest.mark.parametrize("spec", [KEEPERS[0], KEEPERS[2]], ids=lambda spec: spec.kind)
def test_what_a_policy_returns_is_all_that_is_kept(spec: KVCacheSpec, interval: int | None) -> None:
    assert hits(OnlyAtEight, interval, spec) == [8, 8, 8]


@pytest.mark.parametrize("spec", KEEPERS, ids=["window", "long window", "state"])
def test_a_policy_that_adds_to_the_interval_keeps_both(spec: KVCacheSpec) -> None:
    assert hits(AlsoAtEight, None, spec) == hits(Retention, None, spec) == [24, 12, 8]
    assert hits(AlsoAtEight, 12, spec) == [24, 12, 8]


def test_the_interval_alone_decides_without_a_policy() -> None:
    assert hits(Retention, 12, KEEPERS[2]) == [24, 12, 0]
    assert Retention(None, 4).dense
    assert not OnlyAtEight(None, 4).dense
