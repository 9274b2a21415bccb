"""Path cap: a prefix keeps its last states and the known forks."""

from __future__ import annotations

import pytest

from kvhybrid.managers.retention.path_cap import PathCap
from tests.managers.retention.states import StateCache


@pytest.mark.parametrize(("states", "kept"), [(1, [40]), (3, [32, 36, 40]), (20, list(range(4, 41, 4)))])
def test_a_prefix_keeps_its_last_states(states: int, kept: list[int]) -> None:
    cache = StateCache(PathCap, states=states)
    cache.serve(range(40))
    assert cache.states(range(40)) == kept


def test_a_longer_prompt_takes_the_states_of_the_shorter() -> None:
    cache = StateCache(PathCap, states=2)
    cache.serve(range(20))
    assert cache.serve(range(60)) == 20
    assert cache.states(range(60)) == [20, 60]


def test_the_junction_stays() -> None:
    cache = StateCache(PathCap, states=2)
    prompts = [[*range(20), *range(1000 * k, 1000 * k + 20)] for k in (1, 2, 3)]
    assert [cache.serve(prompt) for prompt in prompts] == [0, 0, 20]
    assert cache.states(prompts[1]) == [20, 40]


def test_what_is_given_up_is_reused_first() -> None:
    cache = StateCache(PathCap, states=1)
    pool = cache.manager.block_pool
    cache.serve(range(40))
    assert pool.counts[1].tolist() == [10, 1, 1], "cached blocks by group"
    assert not any(pool.keys.number_of[block] for block in pool.free_queue()[:18])


def test_no_state_at_all_is_no_cap() -> None:
    with pytest.raises(ValueError, match=r"retention.states must be at least 1, found 0"):
        StateCache(PathCap, states=0)
