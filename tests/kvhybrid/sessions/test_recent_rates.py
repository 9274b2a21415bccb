"""Rates over a sliding window: what the last samples hit, whatever came before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.stats import CacheStats
from kvhybrid.sessions.recent_rates import RecentRates
from kvhybrid.specs import FullAttentionSpec

CONFIG = KVCacheConfig((KVCacheGroup("full", FullAttentionSpec(block_size=4)),), num_blocks=4)
EMPTY = KVCacheManager(CONFIG, max_model_len=8).stats()


def sample(asked: int, hit: int, own: int) -> CacheStats:
    group = replace(EMPTY.groups[0], tokens_asked=asked, tokens_hit=hit, tokens_own_hit=own)
    return replace(EMPTY, groups=(group,))


def test_a_rate_covers_the_last_samples_only() -> None:
    rates = RecentRates(window=2)
    found = [rates.add(sample(*counts)) for counts in ((10, 0, 5), (20, 5, 15), (30, 15, 25))]
    assert [f["group/full/recent_hit_rate"] for f in found] == [0.0, 0.25, 0.75]
    assert found[-1]["group/full/recent_own_hit_rate"] == pytest.approx(1.0)


def test_samples_without_requests_do_not_count() -> None:
    rates = RecentRates(window=1)
    rates.add(sample(10, 0, 0))
    rates.add(sample(20, 5, 5))
    assert rates.add(sample(20, 5, 5))["group/full/recent_hit_rate"] == 0.5


def test_nothing_asked_is_a_rate_of_zero() -> None:
    assert RecentRates().add(EMPTY)["group/full/recent_hit_rate"] == 0.0
