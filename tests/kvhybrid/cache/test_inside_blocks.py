"""Hits inside blocks: of specs that the generic manager serves, of requests without keys, everything recorded."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

import pytest

from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.conformance.kit import examine
from kvhybrid.conformance.records import Records
from kvhybrid.conformance.subject import Subject
from kvhybrid.conformance.traffic import draw_config
from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.managers.pool.block_pool import BlockPool
from kvhybrid.managers.retention.base import Retention
from kvhybrid.managers.rules import GroupRules
from kvhybrid.specs import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SuffixSpec,
    register_spec,
    registry,
)


@dataclass(frozen=True, kw_only=True)
class TwoChunksSpec(AttentionSpec, SuffixSpec):
    """A token reads its own chunk and the one before it; a hit may end inside a block."""

    chunk: int = 8

    kind: ClassVar[str] = "two_chunks"
    sub_block: ClassVar[bool] = True

    def first(self, p: int) -> int:
        return max(0, p // self.chunk - 1) * self.chunk


@dataclass(frozen=True, kw_only=True)
class OtherStateSpec(MambaSpec):
    """A recurrent state with no manager of its own."""

    kind: ClassVar[str] = "other_state"


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    for spec in (TwoChunksSpec, OtherStateSpec):
        register_spec(spec)


def watched(*specs: KVCacheSpec, unit: int) -> KVCacheManager:
    groups = tuple(KVCacheGroup(f"g{g}", spec) for g, spec in enumerate(specs))
    config = KVCacheConfig(groups, 60, hash_block_size=unit)
    return KVCacheManager(config, max_model_len=100, track_misses=True, record_events=True)


def run(manager: KVCacheManager, request: Request, *chunks: int) -> int:
    manager.new_step_starts()
    found = manager.get_computed_blocks(request)
    start = found.num_tokens
    for i, chunk in enumerate(chunks):
        manager.new_step_starts()
        hit = (found.num_tokens, found.blocks) if i == 0 else ()
        assert manager.allocate_slots(request, chunk, *hit) is not None
        manager.release_copies()
        request.num_computed_tokens = start = start + chunk
        request.status = RequestStatus.RUNNING
    return found.num_tokens


@pytest.mark.parametrize("num_tokens", range(1, 34))
def test_causes_are_found_for_a_generic_spec(num_tokens: int) -> None:
    manager = watched(
        TwoChunksSpec(block_size=4), FullAttentionSpec(block_size=4), MambaSpec(block_size=8), unit=2
    )
    first = Request("first", range(22), hasher=manager.hasher)
    run(manager, first, 8, 8, 4, 2)
    tokens = [*range(min(num_tokens, 20)), *range(500, 500 + num_tokens - 20)]
    again = Request("again", tokens, hasher=manager.hasher)
    hit = run(manager, again, 1)
    for group in manager.stats().groups:
        assert group.misses is not None
        assert min(group.misses) >= 0
        assert group.tokens_hit + group.misses.total == group.tokens_asked == 22 + num_tokens
    assert hit <= max(num_tokens - 1, 0)


def test_a_generic_state_is_not_hit_inside_its_block() -> None:
    """What the block's key tells of is the state at its end."""
    manager = watched(FullAttentionSpec(block_size=4), OtherStateSpec(block_size=4), unit=2)
    run(manager, Request("first", range(9), hasher=manager.hasher), 8, 1)
    assert run(manager, Request("again", range(8), hasher=manager.hasher), 1) in (0, 4)
    assert run(manager, Request("longer", range(9), hasher=manager.hasher), 1) == 8


@pytest.mark.parametrize("watch", [True, False])
@pytest.mark.parametrize("chunks", [(12, 1), (13,), (8, 4, 1), (4, 9)])
def test_a_request_without_keys_runs_where_states_hit_inside_blocks(chunks: tuple[int, ...], watch: bool) -> None:
    groups = (
        KVCacheGroup("full", FullAttentionSpec(block_size=8)),
        KVCacheGroup("state", MambaSpec(block_size=8)),
    )
    config = KVCacheConfig(groups, 30, hash_block_size=4)
    manager = KVCacheManager(config, max_model_len=100, track_misses=watch, record_events=watch)
    request = Request("r", range(13))
    assert run(manager, request, *chunks) == 0
    for _ in range(20):
        request.append_output_token_ids([1])
        manager.new_step_starts()
        assert manager.allocate_slots(request, 1) is not None
        request.num_computed_tokens += 1
    assert not manager.block_pool.keys.numbers_in_use().any()
    assert manager.take_copies() == []
    Records(manager).check()
    manager.free(request)
    assert manager.usage == 0.0


# ---- requests that grow


@pytest.mark.parametrize("grown", [1, 3, 12])
@pytest.mark.parametrize("readmitted", [False, True])
@pytest.mark.parametrize("adopts", [True, False])
def test_causes_add_up_for_a_request_that_grew_after_its_look_up(
    grown: int, readmitted: bool, adopts: bool
) -> None:
    manager = watched(FullAttentionSpec(block_size=4), MambaSpec(block_size=4), unit=4)
    run(manager, Request("first", range(16), hasher=manager.hasher), 8, 8)
    request = Request("r", range(14), hasher=manager.hasher)
    request.num_preemptions = int(readmitted)
    manager.new_step_starts()
    found = manager.get_computed_blocks(request)
    assert found.num_tokens == 8
    request.append_output_token_ids([9] * grown)
    hit = found.num_tokens if adopts else 0
    assert manager.allocate_slots(request, request.num_tokens - hit, hit, found.blocks) is not None
    for group in manager.stats().groups:
        counted = group.readmitted if readmitted else group
        assert counted.misses is not None
        assert counted.misses.opted_out == grown
        assert counted.misses.no_room == 8 - hit
    Records(manager).check()


# ---- check-spec


def test_check_spec_plays_hits_inside_blocks_with_everything_recorded() -> None:
    drawn = [draw_config(TwoChunksSpec(block_size=4), "two_chunks", Random(seed)) for seed in range(100)]
    assert sum("hash_block_size" in config for config in drawn) > 20


@pytest.mark.parametrize(
    "spec", [TwoChunksSpec(block_size=4), OtherStateSpec(block_size=4)], ids=["chunks", "state"]
)
def test_a_generic_spec_passes(spec: KVCacheSpec) -> None:
    findings = list(examine(Subject("here", (spec,)), 0, 40))
    assert [finding.check for finding in findings if not finding.passed] == []
    assert "records" in [finding.check for finding in findings]


class LosesCauses(SingleTypeKVCacheManager):
    """Names no place for a miss."""

    def lacking(self, *args: object) -> object:
        raise IndexError("a mistake in causes alone")


def test_a_fault_in_what_is_recorded_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TwoChunksSpec, "manager", f"{__name__}:LosesCauses", raising=False)
    findings = list(examine(Subject("here", (TwoChunksSpec(block_size=4),)), 0, 40))
    (broken,) = [finding for finding in findings if finding.passed is False]
    assert broken.check == "exceptions"
    assert "a mistake in causes alone" in broken.text


def test_a_rule_of_a_generic_manager_asks_for_nothing_but_the_live_set() -> None:
    """The granularity of a generic state is its block: no part of it gets a key."""
    rules = GroupRules((0,), 4, 2, 2, True, False, Retention(None, 4))
    state = SingleTypeKVCacheManager(OtherStateSpec(block_size=4), BlockPool(9, 1), rules)
    chunks = SingleTypeKVCacheManager(TwoChunksSpec(block_size=4), BlockPool(9, 1), rules)
    assert (state.granularity, chunks.granularity) == (4, 2)
