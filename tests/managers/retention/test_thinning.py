"""Thinning: few states that cover the whole prefix."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhybrid.managers.arrays import int_array
from kvhybrid.managers.retention.path_cap import PathCap
from kvhybrid.managers.retention.thinning import Thinning
from tests.managers.retention.states import StateCache


class Prompt:
    num_prompt_tokens = shared_prefix_boundary = resumed_at = 0


def test_a_fork_in_the_middle_of_a_long_chain_hits() -> None:
    """The case of sglang#38000 in small: a cap loses a fork at a quarter of the chain, thinning keeps it."""
    chain, fork = range(256), [*range(64), *range(900, 940)]
    for policy, least in ((PathCap, 0), (Thinning, 32)):
        cache = StateCache(policy, states=8)
        cache.serve(chain)
        assert len(cache.states(chain)) == 8
        assert (cache.serve(fork) > 0) == (least > 0)


@given(st.sets(st.integers(1, 200), min_size=1, max_size=60), st.integers(2, 12))
def test_it_keeps_the_last_and_no_more_than_so_many(units: set[int], states: int) -> None:
    kept = int_array([4 * unit for unit in sorted(units)])
    surplus = Thinning(None, 4, states=states).surplus(Prompt(), kept)
    left = sorted(set(kept.tolist()) - set(surplus.tolist()))
    assert len(left) == min(len(kept), states)
    assert left[-1] == kept[-1]


@given(st.integers(20, 400), st.integers(3, 16))
def test_states_that_come_one_by_one_stay_spread(boundaries: int, states: int) -> None:
    """No gap is more than four times what equal gaps would be."""
    policy, left = Thinning(None, 4, states=states), int_array([])
    for unit in range(1, boundaries + 1):
        kept = int_array([*left.tolist(), unit])
        left = int_array(sorted(set(kept.tolist()) - set(policy.surplus(Prompt(), kept).tolist())))
    gaps = [after - here for here, after in zip([0, *left.tolist()], left.tolist(), strict=False)]
    assert max(gaps) <= 4 * max(boundaries / states, 1)


def test_the_junction_stays() -> None:
    cache = StateCache(Thinning, states=2)
    prompts = [[*range(20), *range(1000 * k, 1000 * k + 20)] for k in (1, 2, 3)]
    for prompt in prompts[:2]:
        cache.serve(prompt)
    assert cache.states(prompts[1]) == [20, 40]


def test_one_state_cannot_be_spread() -> None:
    with pytest.raises(ValueError, match=r"retention.states must be at least 2, found 1"):
        StateCache(Thinning, states=1)
