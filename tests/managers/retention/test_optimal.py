"""Optimal: the placement of a number of states that saves the most for a known distribution of forks."""

from __future__ import annotations

from itertools import combinations, pairwise
from math import inf, isclose, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhybrid.managers.retention.optimal import Optimal, placement, spread
from tests.managers.retention.states import StateCache


def saved(weights: tuple[float, ...], places: tuple[int, ...]) -> float:
    """What prompts that part after boundary 1, 2, … save on average."""
    return sum(weight * max((p for p in places if p <= d), default=0) for d, weight in enumerate(weights, start=1))


WEIGHTS = st.lists(st.integers(0, 9).map(float), min_size=0, max_size=9).map(tuple)


@given(WEIGHTS, st.integers(1, 5))
def test_no_other_placement_saves_more(weights: tuple[float, ...], states: int) -> None:
    boundaries = range(1, len(weights) + 1)
    best = max(
        (saved(weights, c) for k in range(states + 1) for c in combinations(boundaries, min(k, len(weights)))),
        default=0.0,
    )
    found = placement(weights, states)
    assert len(found) <= states
    assert list(found) == sorted(set(found))
    assert isclose(saved(weights, found), best)


@given(
    st.lists(st.floats(0, 5), min_size=1, max_size=5).filter(lambda parts: sum(parts) > 0.1), st.integers(0, 30)
)
def test_the_shares_are_those_of_the_pieces(parts: list[float], count: int) -> None:
    shares = spread(parts, count)
    before_the_first = sum(parts) - sum(shares) * sum(parts)
    assert len(shares) == count
    assert min(shares, default=0) >= -1e-9
    assert before_the_first >= -1e-9


def test_a_prompt_is_kept_in_equal_parts_if_others_part_anywhere() -> None:
    cache = StateCache(Optimal, states=3)
    cache.serve(range(33), budget=64)
    assert cache.states(range(33)) == [12, 20, 28]


def test_steps_end_where_states_are_wanted() -> None:
    """One step for the whole prompt would leave no state but the last."""
    cache = StateCache(Optimal, states=2, parts=(0.0, 1.0, 0.0, 0.0))
    cache.serve(range(65), budget=64)
    assert cache.states(range(65)) == [16, 24]


@pytest.mark.parametrize("parts", [(), (0.0,), (-1.0, 2.0), (nan,), (inf,)])
def test_what_is_no_distribution_is_refused(parts: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"retention.parts must be shares"):
        StateCache(Optimal, parts=parts)


def test_a_long_prompt_is_placed_at_once() -> None:
    """O(states × boundaries): 20,000 boundaries take as many steps for each state, not their square."""
    places = placement((1.0,) * 20_000, 16)
    assert len(places) == 16
    gaps = {after - here for here, after in pairwise(places)}
    assert max(gaps) - min(gaps) <= 1
