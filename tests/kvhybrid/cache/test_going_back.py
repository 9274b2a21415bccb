"""A running request whose computed tokens are lowered: granted while its tables have what the step needs."""

from __future__ import annotations

import pytest

from kvhybrid.cache.config import CacheConfigError, KVCacheConfig, KVCacheGroup
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.conformance.invariants import check_backed
from kvhybrid.scenarios.config import build_manager
from kvhybrid.scenarios.manager_config import config_of
from kvhybrid.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SinkWindowSpec,
    SlidingWindowSpec,
)
from tests.kvhybrid.cache.snapshots import snapshot

FULL = FullAttentionSpec(block_size=4)
WINDOW = SlidingWindowSpec(block_size=4, window=5)
SINKS = SinkWindowSpec(block_size=4, window=5, sinks=2)
CHUNK = ChunkedLocalAttentionSpec(block_size=4, chunk=8)
STATE = MambaSpec(block_size=4)
LETTING_GO = {"window": WINDOW, "sinks": SINKS, "chunk": CHUNK, "state": STATE}


def running(manager: KVCacheManager, chunks: list[int], num_tokens: int = 40, in_flight: int = 0) -> Request:
    request = Request("r", range(num_tokens), hasher=manager.hasher)
    for chunk in chunks:
        manager.new_step_starts()
        assert manager.allocate_slots(request, chunk) is not None
        request.num_computed_tokens += chunk
        request.num_in_flight_tokens = min(in_flight, request.num_computed_tokens)
        request.status = RequestStatus.RUNNING
    manager.new_step_starts()
    return request


def manager_of(*specs: KVCacheSpec, **options: object) -> KVCacheManager:
    groups = tuple(KVCacheGroup(f"g{g}", spec) for g, spec in enumerate(specs))
    return KVCacheManager(KVCacheConfig(groups, 60), max_model_len=64, **options)  # type: ignore[arg-type]


def assert_refused(manager: KVCacheManager, request: Request, to: int, new: int, kind: str) -> None:
    before, was = snapshot(manager), request.num_computed_tokens
    request.num_computed_tokens = to
    with pytest.raises(
        ValueError, match=rf"'r': num_computed_tokens went back from {was} to {to}.*'g1' \({kind}\)"
    ):
        manager.allocate_slots(request, new)
    assert snapshot(manager) == before
    request.num_computed_tokens = was
    manager.free(request)
    assert manager.usage == 0.0


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("spec", LETTING_GO.values(), ids=LETTING_GO)
def test_what_was_let_go_of_cannot_be_computed_again(spec: KVCacheSpec, caching: bool) -> None:
    manager = manager_of(FULL, spec, enable_caching=caching)
    request = running(manager, [20, 4, 1])
    assert_refused(manager, request, 4, 4, spec.kind)


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("spec", LETTING_GO.values(), ids=LETTING_GO)
def test_nor_after_decode_steps_that_needed_nothing(spec: KVCacheSpec, steps: int) -> None:
    manager = manager_of(FULL, spec)
    request = running(manager, [20, *[1] * steps], num_tokens=20 + steps)
    assert_refused(manager, request, 8, 1, spec.kind)


@pytest.mark.parametrize("spec", [WINDOW, SINKS, CHUNK], ids=["window", "sinks", "chunk"])
def test_what_a_refused_call_has_freed_is_gone_too(spec: KVCacheSpec) -> None:
    manager = manager_of(FULL, spec)
    request = running(manager, [8, 16])
    assert manager.allocate_slots(request, 8, reserved_blocks=59) is None
    request.num_computed_tokens = 8
    with pytest.raises(ValueError, match="went back from 24 to 8"):
        manager.allocate_slots(request, 8)


def test_a_state_inside_the_last_step_was_never_kept() -> None:
    manager = manager_of(FULL, STATE)
    request = running(manager, [8, 8])
    assert_refused(manager, request, 12, 4, "mamba")


def test_nor_is_a_state_that_its_own_block_has_overwritten() -> None:
    manager = manager_of(FULL, STATE)
    request = running(manager, [17, 1], num_tokens=18)
    assert_refused(manager, request, 17, 1, "mamba")


def test_a_step_that_was_not_made_may_start_from_its_state_again() -> None:
    """The state that it started from lies in another block."""
    manager = manager_of(FULL, STATE)
    request = running(manager, [8, 8])
    request.num_computed_tokens = 8
    assert manager.allocate_slots(request, 8) is not None
    check_backed(manager, request, 8, 16)


@pytest.mark.parametrize("to", range(17))
def test_full_attention_goes_back_anywhere(to: int) -> None:
    manager = manager_of(FULL, CrossAttentionSpec(block_size=4))
    request = running(manager, [12, 4, 1])
    request.num_computed_tokens = to
    assert manager.allocate_slots(request, 17 - to) is not None
    check_backed(manager, request, to, 17)


@pytest.mark.parametrize("rejected", [1, 2, 3])
@pytest.mark.parametrize("spec", [WINDOW, SINKS, CHUNK], ids=["window", "sinks", "chunk"])
def test_rejected_drafts_are_computed_again(spec: KVCacheSpec, rejected: int) -> None:
    manager = manager_of(FULL, spec)
    request = running(manager, [20], num_tokens=20)
    for _ in range(12):
        request.append_output_token_ids([1])
        start = request.num_computed_tokens
        assert manager.allocate_slots(request, 4) is not None
        check_backed(manager, request, start, start + 4)
        request.num_computed_tokens += 4 - rejected
        request.append_output_token_ids([1] * (3 - rejected))


def test_tokens_in_flight_may_be_withdrawn() -> None:
    """Their blocks are freed only once they are settled."""
    manager = manager_of(FULL, WINDOW)
    request = running(manager, [12, 4, 4], in_flight=8)
    request.num_computed_tokens, request.num_in_flight_tokens = 12, 0
    assert manager.allocate_slots(request, 8) is not None
    check_backed(manager, request, 12, 20)


# ---- configurations


@pytest.mark.parametrize("specs", [(FULL,), (FULL, CHUNK)], ids=["full", "chunk"])
def test_a_retention_interval_over_groups_that_keep_everything_names_them(specs: tuple[KVCacheSpec, ...]) -> None:
    with pytest.raises(CacheConfigError, match=r"retention_interval = 8: .*'g0' \(full\).*accepted: 0 or None"):
        manager_of(*specs, retention_interval=8)
    manager_of(*specs, retention_interval=0)
    manager_of(*specs, retention_interval=None)
    manager_of(*specs, WINDOW, retention_interval=8)
    manager_of(*specs, retention_interval=8, enable_caching=False)


def test_a_watermark_of_one_admits_one_request_at_a_time() -> None:
    manager = manager_of(FULL, watermark=1.0)
    request = Request("r", range(8), hasher=manager.hasher)
    assert manager.allocate_slots(request, 8, has_scheduled_reqs=True) is None
    assert manager.allocate_slots(request, 8, has_scheduled_reqs=False) is not None
    request.num_computed_tokens, request.status = 8, RequestStatus.RUNNING
    request.append_output_token_ids([1])
    assert manager.allocate_slots(request, 1) is not None, "it is no bar to what runs"
    again = build_manager(config_of(manager))
    assert again.watermark_blocks == manager.watermark_blocks == 60
