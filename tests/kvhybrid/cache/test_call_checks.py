"""Calls that would read or key unwritten entries are refused before anything changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.errors import StaleHitError
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request
from kvhybrid.cli import main
from kvhybrid.managers.eviction import orders
from kvhybrid.specs import FullAttentionSpec, SlidingWindowSpec


def manager_of(block_size: int = 4, num_blocks: int = 40) -> KVCacheManager:
    groups = (KVCacheGroup("full", FullAttentionSpec(block_size=block_size)),)
    return KVCacheManager(KVCacheConfig(groups, num_blocks), max_model_len=200, track_misses=True)


def compute(manager: KVCacheManager, name: str, tokens: range) -> Request:
    request = Request(name, tokens, hasher=manager.hasher)
    assert manager.allocate_slots(request, len(tokens)) is not None
    request.num_computed_tokens = len(tokens)
    return request


def test_a_request_that_goes_to_two_caches_is_looked_up_afresh_in_each() -> None:
    first, second = manager_of(), manager_of()
    compute(first, "a", range(100, 140))
    compute(second, "b", range(40))
    request = Request("r", range(100, 140), hasher=first.hasher)
    assert first.get_computed_blocks(request).num_tokens == 36
    assert second.get_computed_blocks(request).num_tokens == 0
    assert first.get_computed_blocks(request).num_tokens == 36


@pytest.mark.parametrize("more", [True, False])
def test_a_hit_of_a_cache_with_other_groups_is_refused(more: bool) -> None:
    window = KVCacheGroup("window", SlidingWindowSpec(block_size=4, window=8))
    groups = (KVCacheGroup("full", FullAttentionSpec(block_size=4)),)
    one = KVCacheManager(KVCacheConfig(groups, 40), max_model_len=200)
    two = KVCacheManager(KVCacheConfig((*groups, window), 80), max_model_len=200)
    there, here = (two, one) if more else (one, two)
    compute(there, "a", range(40))
    request = Request("r", range(40), hasher=there.hasher)
    hit = there.get_computed_blocks(request)
    assert hit.num_tokens == 36
    with pytest.raises(ValueError, match="'r': new_computed_blocks is a hit of another cache"):
        here.allocate_slots(request, 4, hit.num_tokens, hit.blocks)
    assert here.usage == 0


def test_keys_of_another_length_are_refused() -> None:
    request = Request("r", range(24), hasher=manager_of(block_size=4).hasher)
    with pytest.raises(ValueError, match=r"'r' has a key for every 4 tokens, this cache for every 8"):
        manager_of(block_size=8).get_computed_blocks(request)


def test_a_hit_must_be_handed_over_as_it_was_found() -> None:
    manager = manager_of()
    manager.free(compute(manager, "a", range(40)))
    request = Request("r", range(40), hasher=manager.hasher)
    found = manager.get_computed_blocks(request)
    with pytest.raises(ValueError, match=r"num_new_computed_tokens = 16, new_computed_blocks is a hit of 0"):
        manager.allocate_slots(request, 4, 16, None)
    with pytest.raises(ValueError, match=r"num_new_computed_tokens = 8, .* a hit of 36"):
        manager.allocate_slots(request, 4, 8, found.blocks)
    assert manager.usage == 0.0


def test_two_requests_of_one_name_do_not_share_a_table() -> None:
    manager = manager_of()
    compute(manager, "a", range(8))
    with pytest.raises(ValueError, match=r"'a': another request of this id holds blocks"):
        manager.allocate_slots(Request("a", range(8), hasher=manager.hasher), 4)


def test_a_hit_whose_blocks_were_reused_is_out_of_date() -> None:
    manager = manager_of(num_blocks=11)
    manager.free(compute(manager, "a", range(40)))
    request = Request("r", range(40), hasher=manager.hasher)
    found = manager.get_computed_blocks(request)
    manager.free(compute(manager, "stranger", range(500, 540)))
    with pytest.raises(StaleHitError, match=r"out of date"):
        manager.allocate_slots(request, 4, found.num_tokens, found.blocks)
    assert manager.usage == 0.0


@pytest.mark.parametrize("name", ["os:path", "json:nope", "no_such_module:X", "mru"])
def test_an_unknown_order_of_reuse_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        orders.find(name)


@pytest.mark.parametrize(
    "override", ["device=foo", "device=cuda:99", "record=/no_such_folder/x.jsonl", "eviction=os:path"]
)
def test_a_mistake_on_the_command_line_is_one_line(
    override: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", override]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) <= 2
    assert list(tmp_path.iterdir()) == []
