"""Bounds: MIN, its relaxation for hybrids and the integer program bracket each other and every replay."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from kvhybrid.errors import InputError
from kvhybrid.replay.bounds import optimum
from kvhybrid.replay.bounds.belady import units_hit
from kvhybrid.replay.bounds.optimum import optimal_tokens
from kvhybrid.replay.bounds.references import References
from kvhybrid.replay.bounds.relaxation import capacity_in_units, is_exact
from tests.kvhybrid.replay.bounds.cases import BLOCK, LAYERS, Case, loop_of, random_case, replayed

THINNED = ("window", "only window", "state")
"""Layers that a retention policy may thin out."""


def bounds_of(case: Case) -> tuple[int, int, int, bool]:
    """Tokens of the optimum, of MIN and of an unlimited cache, and whether MIN is exact."""
    config = loop_of(case).scheduler.cache.config
    unit = config.scheduler_block_size
    references = References.of_requests(case.requests, unit, BLOCK)
    least = references.hit_tokens(units_hit(references, capacity_in_units(config, unit)))
    most = references.hit_tokens(units_hit(references, None))
    return optimal_tokens(config, case.requests, unit, BLOCK), least, most, is_exact(config)


@pytest.mark.parametrize(("layers", "part"), [*product(LAYERS, range(4))])
def test_replay_optimum_relaxation_and_unlimited_cache_are_in_order(layers: str, part: int) -> None:
    for seed in range(9 * part, 9 * part + 9):
        case = random_case(seed, layers)
        best, least, most, exact = bounds_of(case)
        assert best <= least <= most, seed
        assert best == least or not exact, seed
        for interval in (None, 2 * BLOCK) if layers in THINNED else (None,):
            assert replayed(loop_of(case, interval=interval)) <= best, (seed, interval)


def test_the_bounds_differ_where_they_should() -> None:
    found = [bounds_of(random_case(seed, layers)) for layers in LAYERS for seed in range(9)]
    assert any(best < least for best, least, _, _ in found)
    assert any(least < most for _, least, most, _ in found)


def exhaustive(case: Case) -> int:
    """The optimum of one full-attention group by trying every set of blocks to keep."""
    references = References.of_requests(case.requests, BLOCK, BLOCK)
    states = {frozenset[int](): 0}
    for request in range(references.num_requests):
        numbers = references.numbers[references.starts[request] : references.starts[request + 1]].tolist()
        following: dict[frozenset[int], int] = {}
        for held, tokens in states.items():
            hit = 0
            while hit < references.usable[request] and numbers[hit] in held:
                hit += 1
            available = sorted(held | set(numbers))
            for chosen in product((False, True), repeat=len(available)):
                kept = frozenset(number for number, keep in zip(available, chosen, strict=True) if keep)
                if len(kept) <= case.blocks:
                    following[kept] = max(following.get(kept, 0), tokens + hit * BLOCK)
        states = following
    return max(states.values())


@pytest.mark.parametrize("seed", range(12))
def test_min_is_what_an_exhaustive_search_finds(seed: int) -> None:
    random = np.random.default_rng(seed)
    whole = random_case(seed, "full")
    short = [r for r in whole.requests if r.num_prompt_tokens <= 4 * BLOCK and r.num_output_tokens == 1][:5]
    case = Case(short, whole.layers, int(random.integers(1, 4)))
    references = References.of_requests(short, BLOCK, BLOCK)
    assert references.hit_tokens(units_hit(references, case.blocks)) == exhaustive(case)


def test_a_pool_without_room_hits_nothing() -> None:
    references = References.of_requests(random_case(1, "full").requests, BLOCK, BLOCK)
    assert units_hit(references, 0).sum() == 0


def test_a_program_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimum, "MOST_VARIABLES", 3)
    case = random_case(1, "full")
    with pytest.raises(InputError, match=r"bounds=optimum: the integer program has \d+ variables, more than 3"):
        optimal_tokens(loop_of(case).scheduler.cache.config, case.requests, BLOCK, BLOCK)
