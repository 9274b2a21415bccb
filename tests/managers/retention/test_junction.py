"""Junction: states stay where prompts part, and at the end of each sequence."""

from __future__ import annotations

from kvhybrid.managers.retention.junction import Junction
from tests.managers.retention.states import StateCache


def test_the_end_moves_with_the_output() -> None:
    cache = StateCache(Junction)
    cache.serve(range(22), output=[100])
    assert cache.states([*range(22), 100, 101]) == [20], "no block boundary in the output yet"
    cache = StateCache(Junction)
    cache.serve(range(22), output=range(100, 112))
    assert cache.states([*range(22), *range(100, 112)]) == [32]
    assert cache.serve([*range(22), *range(100, 112), 7]) == 32, "the next turn resumes after the output"


def test_a_fork_is_kept_from_the_second_prompt_on() -> None:
    """The first prompt shows no junction, the second computes the state there, the third resumes from it."""
    cache = StateCache(Junction)
    prompts = [[*range(40), *range(1000 * k, 1000 * k + 20)] for k in (1, 2, 3)]
    assert [cache.serve(prompt) for prompt in prompts] == [0, 0, 40]
    assert cache.states(prompts[1]) == [40, 56]


def test_with_an_interval_its_positions_stay_too() -> None:
    cache = StateCache(Junction, interval=8)
    cache.serve(range(22), output=range(100, 117))
    assert cache.states([*range(22), *range(100, 117)]) == [8, 16, 24, 32, 36]
