"""The gate of whole requests: it asks for what the worst steps take, and for no block more."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvhybrid import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroup,
    KVCacheManager,
    KVCacheSpec,
    MambaSpec,
    Request,
    SinkWindowSpec,
    SlidingWindowSpec,
)

SIZES = st.sampled_from([1, 2, 4])
WIDTHS = st.integers(1, 9)
SPECS = st.one_of(
    st.builds(FullAttentionSpec, block_size=SIZES),
    st.builds(SlidingWindowSpec, block_size=SIZES, window=WIDTHS),
    st.builds(ChunkedLocalAttentionSpec, block_size=SIZES, chunk=WIDTHS),
    st.builds(SinkWindowSpec, block_size=SIZES, sinks=st.integers(1, 4), window=WIDTHS),
    st.builds(MambaSpec, block_size=SIZES),
)
GROUPS = st.lists(SPECS, min_size=1, max_size=3)


def cache_of(specs: Sequence[KVCacheSpec], num_blocks: int, in_flight: int, **options: int) -> KVCacheManager:
    groups = tuple(KVCacheGroup(f"group.{i}", spec) for i, spec in enumerate(specs))
    config = KVCacheConfig(groups, num_blocks, **options)
    return KVCacheManager(config, max_model_len=256, max_in_flight_tokens=in_flight)


def admit(cache: KVCacheManager, request: Request, num_tokens: int) -> bool:
    """Let ``request`` in if the whole of it fits, with whatever hit it has."""
    hit = cache.get_computed_blocks(request)
    num_tokens = min(num_tokens, request.num_tokens - hit.num_tokens)
    granted = cache.allocate_slots(
        request, num_tokens, hit.num_tokens, hit.blocks, full_sequence_must_fit=True, has_scheduled_reqs=False
    )
    request.num_computed_tokens = hit.num_tokens + num_tokens
    return granted is not None


def compute(cache: KVCacheManager, request: Request, num_tokens: int) -> bool:
    granted = cache.allocate_slots(request, num_tokens)
    request.num_computed_tokens += num_tokens
    cache.take_copies()
    cache.release_copies()
    cache.new_step_starts()
    return granted is not None


def present(cache: KVCacheManager, tokens: int, held: bool) -> None:
    """``tokens`` tokens of the prompt are cached, and still held or not."""
    if not tokens:
        return
    first = Request("first", range(tokens), hasher=cache.hasher)
    assert cache.allocate_slots(first, tokens) is not None
    first.num_computed_tokens = tokens
    cache.new_step_starts()
    if not held:
        cache.free(first)


def touched(spec: KVCacheSpec, n: int, m: int) -> set[int]:
    """The blocks of a step from ``n`` to ``m`` tokens, by the definition of a live set."""
    read = {j for blocks in spec.live_blocks(n) for j in blocks}
    if spec.state:
        return read | {j for blocks in spec.live_blocks(m) for j in blocks}
    return read | set(range(n // spec.block_size, -(-m // spec.block_size)))


def worst_step(specs: Sequence[KVCacheSpec], prompt: int, in_flight: int) -> int:
    """By trying all steps of at most ``in_flight`` tokens."""
    return max(
        sum(len(touched(spec, n, m)) for spec in specs)
        for n in range(prompt)
        for m in range(n + 1, min(n + in_flight, prompt) + 1)
    )


@settings(max_examples=150, deadline=None)
@given(GROUPS, st.integers(1, 40), st.integers(1, 12), st.integers(1, 12))
def test_it_asks_for_what_the_worst_of_all_steps_takes(
    specs: list[KVCacheSpec], prompt: int, in_flight: int, step: int
) -> None:
    needed = worst_step(specs, prompt, in_flight)
    for usable, fits in ((needed, True), (needed - 1, False)):
        cache = cache_of(specs, usable + 1, in_flight)
        assume(cache.coordinator.whole_request.is_exact)
        assume(not cache.coordinator.sub_block_hits)  # there a state's tail is copied: see below
        request = Request("request", range(prompt), hasher=cache.hasher, skip_reading_prefix_cache=True)
        assert admit(cache, request, min(step, in_flight)) is fits, f"{usable} of {needed} blocks"


@settings(max_examples=150, deadline=None)
@given(GROUPS, st.integers(2, 40), st.integers(1, 8), st.integers(0, 40), st.booleans(), st.integers(0, 10**6))
def test_what_is_let_in_finishes_by_whatever_steps(
    specs: list[KVCacheSpec], prompt: int, in_flight: int, cached: int, held: bool, seed: int
) -> None:
    random = Random(seed)
    first_step = random.randint(1, in_flight)
    for usable in range(1, 200):
        cache = cache_of(specs, usable + 1 + 120, in_flight)
        present(cache, min(cached, prompt), held)
        spare = cache.block_pool.take(max(cache.num_free_blocks - usable, 0))
        request = Request("request", range(prompt), hasher=cache.hasher)
        if admit(cache, request, first_step):
            break
        cache.block_pool.release(spare)
    cache.take_copies()
    cache.release_copies()
    cache.new_step_starts()
    while left := request.num_tokens - request.num_computed_tokens:
        assert compute(cache, request, random.randint(1, min(left, in_flight))), (
            f"let in with {usable} free blocks"
        )


def test_adopted_blocks_that_are_free_are_part_of_what_a_state_holds() -> None:
    """Five blocks: three of the full group, the state that is read and the one that is written."""
    cache = cache_of([FullAttentionSpec(block_size=4), MambaSpec(block_size=4)], 6, 256)
    present(cache, 4, held=False)
    second = Request("second", range(10), hasher=cache.hasher)
    assert admit(cache, second, 4)
    assert second.num_computed_tokens == 8, "four of them hit"
    assert compute(cache, second, 2)


@pytest.mark.parametrize("usable", [7, 8])
def test_a_state_that_others_hold_saves_no_block_after_the_first_token(usable: int) -> None:
    """The first request holds 4 blocks. The second reads two of them at token 6, and one at token 7."""
    specs = [ChunkedLocalAttentionSpec(block_size=2, chunk=4), MambaSpec(block_size=2)]
    cache = cache_of(specs, usable + 1, 16)
    present(cache, 6, held=True)
    second = Request("second", [*range(6), 10, 11, 12], hasher=cache.hasher)
    if not admit(cache, second, 1):
        assert usable == 7
        return
    cache.new_step_starts()
    assert second.num_computed_tokens == 7, "six of them hit"
    assert compute(cache, second, 2)


def test_the_groups_need_not_be_at_their_worst_in_one_step() -> None:
    """The chunk group holds 4 blocks up to token 40, the full group its eleventh from token 41 on."""
    specs = [FullAttentionSpec(block_size=4), ChunkedLocalAttentionSpec(block_size=4, chunk=8)]
    assert worst_step(specs, 41, 8) == 14 == 11 + 4 - 1


@pytest.mark.parametrize("usable", [4, 5])
def test_the_copy_that_keeps_a_key_inside_a_block_is_counted(usable: int) -> None:
    """A prompt of 7 keys its state at 6, inside the second block of 4: the step from there copies it first."""
    specs = [FullAttentionSpec(block_size=4), MambaSpec(block_size=4)]
    cache = cache_of(specs, usable + 1, 2, hash_block_size=2)
    request = Request("request", range(7), hasher=cache.hasher)
    if not admit(cache, request, 2):
        assert usable == 4
        return
    cache.new_step_starts()
    assert all(compute(cache, request, n) for n in (2, 2, 1))


def test_the_figure_of_a_request_that_never_fits_is_the_one_of_the_gate() -> None:
    specs = [FullAttentionSpec(block_size=4), ChunkedLocalAttentionSpec(block_size=4, chunk=8)]
    cache = cache_of(specs, 15, 8)
    request = Request("request", range(41), hasher=cache.hasher)
    assert cache.blocks_to_finish(request, 8) == [14]


def test_a_spec_without_a_cycle_is_charged_its_bound() -> None:
    class Unknown(SlidingWindowSpec):
        def release_cycle(self, block_size: int) -> tuple[int, int] | None:
            return None

    specs = [FullAttentionSpec(block_size=4), Unknown(block_size=4, window=8)]
    cache = cache_of(specs, 100, 8)
    request = Request("request", range(41), hasher=cache.hasher)
    assert cache.blocks_to_finish(request, 8) == [11 + specs[1].admission_blocks(8, 41)]
    assert worst_step(specs, 41, 8) <= 11 + specs[1].admission_blocks(8, 41)
