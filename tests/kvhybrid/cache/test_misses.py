"""Why tokens were not hit: every token that is asked for is a hit or has exactly one cause, in every group."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhybrid.cache.blocks import ComputedBlocks
from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.cache.stats import MissCauses
from kvhybrid.specs import CrossAttentionSpec, FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec
from tests.kvhybrid.cache.checked_cache import CheckedCache, play
from tests.kvhybrid.cache.setups import Features, features

FULL = FullAttentionSpec(block_size=4)
FULL_8 = FullAttentionSpec(block_size=8)
WINDOW = SlidingWindowSpec(block_size=4, window=5)
STATE = MambaSpec(block_size=4)


def manager_of(
    *specs: KVCacheSpec, num_blocks: int = 60, draft: tuple[int, ...] = (), unit: int | None = None, **options: Any
) -> KVCacheManager:
    groups = tuple(KVCacheGroup(f"g{g}", spec, draft=g in draft) for g, spec in enumerate(specs))
    config = KVCacheConfig(groups, num_blocks, hash_block_size=unit)
    return KVCacheManager(config, max_model_len=200, track_misses=True, **options)


def serve(
    manager: KVCacheManager, tokens: Sequence[int], *steps: int, **options: Any
) -> tuple[int, list[MissCauses]]:
    """A request comes, computes its tokens in steps that end at ``steps``, and goes. Its hit, and its causes."""
    request = Request("r", tokens, hasher=manager.hasher, **options)
    manager.new_step_starts()
    found = manager.get_computed_blocks(request)
    at, hit = found.num_tokens, found.num_tokens
    before = [group.misses for group in manager.stats().groups]
    for end in (*steps, len(tokens)):
        if end > at:
            manager.new_step_starts()
            assert manager.allocate_slots(request, end - at, hit, found.blocks) is not None
            manager.release_copies()
            request.status, request.num_computed_tokens, at, hit = RequestStatus.RUNNING, end, end, 0
    manager.free(request)
    counted = [difference(group.misses, was) for group, was in zip(manager.stats().groups, before, strict=True)]
    if found.blocks.causes is not None:
        assert counted == list(found.blocks.causes), "what the look-up said is what was counted"
    for causes in counted:
        assert found.num_tokens + causes.total == len(tokens)
    return found.num_tokens, counted


def difference(now: MissCauses | None, was: MissCauses | None) -> MissCauses:
    assert now is not None
    assert was is not None
    return MissCauses(*(a - b for a, b in zip(now, was, strict=True)))


# ---- each cause


def test_a_new_prompt_was_never_seen() -> None:
    assert serve(manager_of(FULL), range(12)) == (0, [MissCauses(never_seen=12)])


def test_the_rest_behind_a_shared_prefix_was_never_seen() -> None:
    manager = manager_of(FULL, WINDOW)
    serve(manager, range(12))
    hit, causes = serve(manager, [*range(8), *range(100, 108)])
    assert (hit, causes) == (8, [MissCauses(never_seen=8)] * 2)


def test_a_full_resend_of_an_aligned_prompt_misses_its_last_block_for_the_last_token() -> None:
    manager = manager_of(FULL)
    serve(manager, range(8))
    assert serve(manager, range(8)) == (4, [MissCauses(last_token=4)])


def test_the_tail_of_the_prompt_is_below_the_granularity() -> None:
    manager = manager_of(FULL)
    serve(manager, range(10))
    assert serve(manager, range(10)) == (8, [MissCauses(granularity=2)])


def test_a_block_longer_than_the_prompt_is_too_coarse_and_not_unseen() -> None:
    """No prompt of ten tokens can ever hit blocks of sixteen (vllm#54607)."""
    manager = manager_of(FullAttentionSpec(block_size=16))
    for _ in range(2):
        assert serve(manager, range(10)) == (0, [MissCauses(granularity=10)])


def test_blocks_of_4_and_8_tokens_meet_at_8() -> None:
    """The group of four has the tokens up to 12, but the group of eight cannot resume there."""
    manager = manager_of(FULL, FULL_8)
    serve(manager, range(17))
    hit, causes = serve(manager, range(13))
    assert (hit, causes) == (8, [MissCauses(granularity=5), MissCauses(granularity=5)])


def test_tokens_behind_the_last_common_boundary_are_below_the_granularity_at_a_resend() -> None:
    """No block of them was kept since no hit can end there: that is the granularity's doing, not retention's."""
    manager = manager_of(FULL, FULL_8)
    serve(manager, range(13))
    hit, causes = serve(manager, range(13))
    assert (hit, causes) == (8, [MissCauses(granularity=5), MissCauses(granularity=5)])


def test_a_block_of_one_group_longer_than_the_prompt_is_too_coarse_for_all_groups() -> None:
    manager = manager_of(FULL, FullAttentionSpec(block_size=16))
    for _ in range(2):
        assert serve(manager, range(10)) == (0, [MissCauses(granularity=10)] * 2)


def test_a_draft_model_drops_the_last_unit() -> None:
    manager = manager_of(FULL, draft=(0,))
    serve(manager, range(13))
    assert serve(manager, range(13)) == (8, [MissCauses(draft_drop=4, granularity=1)])


def test_a_group_that_lost_a_block_costs_the_others_their_hit() -> None:
    manager = manager_of(FULL, WINDOW)
    serve(manager, range(9))
    manager.evict_blocks([5])  # the window's second block: 1 to 3 are full attention's
    hit, causes = serve(manager, range(9))
    assert hit == 4
    assert causes == [MissCauses(other_group=4, granularity=1), MissCauses(evicted=4, granularity=1)]
    own = [group.tokens_own_hit for group in manager.stats().groups]
    assert own == [8, 4]


def test_a_window_s_tails_that_retention_gave_up_were_not_retained() -> None:
    """Retention 0 keeps the tail of the latest position only: 16 of 17 tokens."""
    manager = manager_of(FULL, WINDOW, retention_interval=0)
    serve(manager, range(17))
    hit, causes = serve(manager, range(13))
    assert hit == 0
    assert causes == [MissCauses(other_group=12, granularity=1), MissCauses(not_retained=12, granularity=1)]


def test_a_window_s_tail_between_two_kept_ones_was_not_retained() -> None:
    manager = manager_of(FULL, WINDOW, retention_interval=8)
    serve(manager, range(25))
    hit, causes = serve(manager, range(13))
    assert hit == 8
    assert causes == [MissCauses(other_group=4, granularity=1), MissCauses(not_retained=4, granularity=1)]


@pytest.mark.parametrize(("steps", "hit"), [((), 0), ((6,), 0), ((8,), 8), ((4, 6), 4), ((4, 8, 12), 12)])
def test_a_state_exists_where_a_step_ended_and_is_not_retained_elsewhere(steps: tuple[int, ...], hit: int) -> None:
    manager = manager_of(FULL, STATE)
    serve(manager, range(13), *steps)
    assert serve(manager, range(13)) == (
        hit,
        [MissCauses(other_group=12 - hit, granularity=1), MissCauses(not_retained=12 - hit, granularity=1)],
    )


def test_blocks_that_others_reused_were_evicted() -> None:
    manager = manager_of(FULL, num_blocks=4)
    serve(manager, range(9))
    serve(manager, range(100, 112))
    assert serve(manager, range(9)) == (0, [MissCauses(evicted=8, granularity=1)])


def test_blocks_whose_keys_were_dropped_by_name_were_evicted() -> None:
    manager = manager_of(FULL)
    serve(manager, range(9))
    manager.evict_blocks([2])
    assert serve(manager, range(9)) == (4, [MissCauses(evicted=4, granularity=1)])


def test_a_reset_evicts_everything() -> None:
    manager = manager_of(FULL, WINDOW)
    serve(manager, range(9))
    assert manager.reset_prefix_cache()
    assert serve(manager, range(9)) == (0, [MissCauses(evicted=8, granularity=1)] * 2)


def test_what_was_evicted_and_computed_again_is_a_hit_again() -> None:
    manager = manager_of(FULL)
    serve(manager, range(9))
    manager.reset_prefix_cache()
    serve(manager, range(9))
    assert serve(manager, range(9)) == (8, [MissCauses(granularity=1)])


def test_a_request_that_does_not_read_the_cache_opted_out() -> None:
    manager = manager_of(FULL, WINDOW)
    serve(manager, range(9))
    assert serve(manager, range(9), skip_reading_prefix_cache=True) == (0, [MissCauses(opted_out=9)] * 2)


def test_cross_attention_does_not_take_part() -> None:
    manager = manager_of(FULL, CrossAttentionSpec(block_size=4))
    serve(manager, range(9))
    assert serve(manager, range(9)) == (8, [MissCauses(granularity=1), MissCauses(opted_out=1)])


def test_a_hit_inside_a_block_leaves_only_what_is_below_a_key() -> None:
    """Blocks of 8 tokens, keys of 4: a step that ended on the prompt's last whole key left a state there."""
    manager = manager_of(FULL_8, MambaSpec(block_size=8), unit=4)
    serve(manager, range(14), 8, 12)
    assert serve(manager, range(14)) == (12, [MissCauses(granularity=2)] * 2)


def test_tokens_once_computed_in_a_part_of_a_block_count_as_seen() -> None:
    """Two prompts share half of a block of 8: the second's first key was computed, and no block is kept for it."""
    manager = manager_of(FULL_8, MambaSpec(block_size=8), unit=4)
    serve(manager, [*range(4), *range(100, 113)], 8, 16)
    hit, causes = serve(manager, [*range(4), *range(200, 212)])
    assert hit == 0
    assert [group.never_seen for group in causes] == [12, 12]
    assert [group.not_retained for group in causes] == [4, 4]


def test_a_salt_makes_the_same_tokens_unseen() -> None:
    manager = manager_of(FULL)
    serve(manager, range(8))
    assert serve(manager, range(8), cache_salt="other") == (0, [MissCauses(never_seen=8)])


def test_tokens_from_outside_are_misses_too() -> None:
    manager = manager_of(FULL)
    request = Request("r", range(12), hasher=manager.hasher)
    found = manager.get_computed_blocks(request)
    manager.allocate_slots(request, 4, 0, found.blocks, num_external_computed_tokens=8)
    group = manager.stats().groups[0]
    assert (group.tokens_asked, group.tokens_hit, group.misses) == (12, 0, MissCauses(never_seen=12))


def test_a_refused_request_is_not_counted() -> None:
    manager = manager_of(FULL, num_blocks=3)
    request = Request("r", range(12), hasher=manager.hasher)
    found = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, 12, 0, found.blocks) is None
    assert manager.stats().groups[0].misses == MissCauses()


def test_without_tracking_there_are_no_causes() -> None:
    config = KVCacheConfig((KVCacheGroup("g", FULL),), 10)
    manager = KVCacheManager(config, max_model_len=50)
    assert manager.get_computed_blocks(Request("r", range(9), hasher=manager.hasher)).blocks.causes is None
    assert manager.stats().groups[0].misses is None


def test_causes_have_names_for_trackers() -> None:
    manager = manager_of(FULL)
    serve(manager, range(10))
    metrics = manager.stats().metrics()
    assert metrics["group/g0/miss/never_seen"] == 8
    assert metrics["group/g0/miss/granularity"] == 2


# ---- memory


def test_memory_is_bounded_however_many_prompts_come() -> None:
    manager = manager_of(FULL, WINDOW, num_blocks=40)
    coordinator = manager.coordinator
    coordinator.index.room = 64
    per_prompt = 10
    # In use at most: a block's number each, what two periods between sweeps gave, and a prompt beyond each.
    bound = 40 + 2 * (64 + per_prompt) + per_prompt
    for i in range(400):
        serve(manager, range(1000 * i, 1000 * i + 4 * per_prompt))
        assert len(coordinator.index) <= bound
    ledger = coordinator.ledger
    assert ledger is not None
    assert ledger.room <= 2 * bound
    assert manager.block_pool.keys.index.shape[1] <= 2 * bound
    assert manager.stats().groups[0].misses == MissCauses(never_seen=400 * 40)


@pytest.mark.parametrize("kind", ["branches of one prefix", "sequences that grow"])
def test_memory_is_bounded_whatever_shape_the_prefixes_have(kind: str) -> None:
    manager, rng = (
        manager_of(FullAttentionSpec(block_size=1), replace(WINDOW, block_size=1), num_blocks=60),
        random.Random(1),
    )
    index = manager.coordinator.index
    index.room = 64
    for i in range(200):
        shared = rng.randint(0, 24) if kind.startswith("branches") else 0
        length = rng.randint(1, 24)
        serve(manager, [*range(shared), *range(1000 * i, 1000 * i + length)][:25], *range(1, length, 1 + i % 2))
        assert len(index) <= 60 + 4 * (64 + 25)


def test_an_eviction_is_remembered_for_a_while_and_then_forgotten() -> None:
    manager = manager_of(FULL, num_blocks=12)
    manager.coordinator.index.room = 64
    serve(manager, range(9))
    for i in range(1, 5):
        serve(manager, range(1000 * i, 1000 * i + 36))
    assert serve(manager, range(9))[1] == [MissCauses(evicted=8, granularity=1)]
    for i in range(5, 60):
        serve(manager, range(1000 * i, 1000 * i + 36))
    assert serve(manager, range(9))[1] == [MissCauses(never_seen=8, granularity=1)]


# ---- in random traffic


class RememberingCache(CheckedCache):
    """Knows which prefixes were computed, and checks what the causes say about that."""

    def __init__(self, manager: KVCacheManager) -> None:
        super().__init__(manager)
        self.computed: set[int] = set()

    def granted(self, request: Request, main: int) -> None:
        super().granted(request, main)
        self.computed.update(self.contents.prefixes(request)[:main])

    def loaded(self, request: Request, start: int, end: int) -> None:
        super().loaded(request, start, end)
        self.computed.update(self.contents.prefixes(request)[:end])

    def check_causes(self, request: Request, found: ComputedBlocks) -> None:
        super().check_causes(request, found)
        prefixes, config = self.contents.prefixes(request), self.manager.config
        known = sum(prefix in self.computed for prefix in prefixes)
        for size, group, causes in zip(config.block_sizes, config.groups, found.blocks.causes or (), strict=False):
            if not group.spec.cacheable:
                assert causes == MissCauses(opted_out=len(prefixes) - found.num_tokens)
                continue
            assert causes.never_seen <= len(prefixes) - known // size * size, "it was computed before"
            if known < config.hash_unit:
                assert causes.evicted == causes.not_retained == 0, "it was never computed"


SEEDS = st.integers(0, 2**32 - 1)


@given(features(), SEEDS, st.integers(1, 120))
@settings(max_examples=25)
def test_hits_and_causes_add_up_after_every_call(setup: Features, seed: int, actions: int) -> None:
    play(CheckedCache(setup.build()), seed, actions)


@given(features(), SEEDS)
@settings(max_examples=20)
def test_causes_agree_with_what_was_computed(setup: Features, seed: int) -> None:
    play(RememberingCache(replace(setup, room=None).build()), seed, 100)
