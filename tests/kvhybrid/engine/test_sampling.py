"""Sampling: greedy and drawn tokens, and what a draw may depend on."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from kvhybrid.engine.sampling import SamplingParams, finite_rows, sample

GREEDY = SamplingParams()


def rows(num_rows: int, vocab_size: int = 50, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed))


def test_temperature_zero_takes_the_largest_logit() -> None:
    logits = rows(5)
    assert sample(logits, [GREEDY] * 5, list(range(5))) == logits.argmax(-1).tolist()


def test_a_draw_follows_the_softmax_at_its_temperature() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    temperature, draws = 2.0, 6000
    params = SamplingParams(temperature=temperature, seed=3)
    found = Counter(sample(logits.expand(draws, -1), [params] * draws, range(draws)))
    expected = (logits[0] / temperature).softmax(-1)
    for token, share in enumerate(expected.tolist()):
        assert found[token] / draws == pytest.approx(share, abs=0.025)


def test_top_k_draws_only_from_the_k_largest() -> None:
    logits = rows(1).expand(300, -1)
    params = SamplingParams(temperature=5.0, top_k=4)
    assert set(sample(logits, [params] * 300, range(300))) == set(logits[0].topk(4).indices.tolist())


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    logits = torch.full((400, 6), -torch.inf)
    logits[:, 2] = logits[:, 4] = 1.0
    found = sample(logits, [SamplingParams(temperature=1.0)] * 400, range(400))
    assert set(found) == {2, 4}


def test_a_draw_depends_on_its_row_seed_and_position_and_not_on_the_batch() -> None:
    logits = rows(8)
    params = [
        SamplingParams(temperature=0.5 + row / 4, top_k=(0, 3, 7)[row % 3], seed=row) if row % 4 else GREEDY
        for row in range(8)
    ]
    positions = [10 * row for row in range(8)]
    together = sample(logits, params, positions)
    alone = [sample(logits[row : row + 1], [params[row]], [positions[row]])[0] for row in range(8)]
    backwards = sample(logits.flip(0), params[::-1], positions[::-1])[::-1]
    assert together == alone == backwards


def test_seed_and_position_each_change_the_draw() -> None:
    logits = rows(1).expand(40, -1)
    by_position = sample(logits, [SamplingParams(temperature=1.0)] * 40, range(40))
    by_seed = sample(logits, [SamplingParams(temperature=1.0, seed=seed) for seed in range(40)], [0] * 40)
    assert len(set(by_position)) > 5
    assert len(set(by_seed)) > 5
    assert by_position != by_seed


def test_rounding_of_the_logits_does_not_move_a_draw() -> None:
    logits = rows(200, seed=1)
    nudged = logits * (1 + 1e-6 * rows(200, seed=2))
    params = [SamplingParams(temperature=1.0)] * 200
    changed = sum(
        a != b for a, b in zip(sample(logits, params, range(200)), sample(nudged, params, range(200)), strict=True)
    )
    assert changed == 0


def test_rows_that_are_not_finite_are_told_apart() -> None:
    bad = [torch.nan, torch.inf, -torch.inf]
    logits_RV = torch.zeros(7, 5)
    for row, value in enumerate(bad):
        logits_RV[2 * row + 1, row] = value
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert finite_rows(logits_RV.to(dtype)) == [True, False] * 3 + [True]
    assert finite_rows(torch.full((1, 3), torch.finfo(torch.float16).max, dtype=torch.float16)) == [True]


def test_a_temperature_near_zero_is_greedy() -> None:
    logits_RV = torch.tensor([[-3e38, 1.0, 3e38, 2e38], [0.5, -1.0, 0.25, 0.0]])
    for temperature in (5e-324, 1e-300, 1e-30):
        assert sample(logits_RV, [SamplingParams(temperature=temperature)] * 2, [0, 1]) == [2, 0]


@pytest.mark.parametrize(
    ("option", "value"), [("temperature", -0.1), ("temperature", float("nan")), ("top_k", -1), ("seed", -1)]
)
def test_params_out_of_range_are_refused_by_name(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=option):
        SamplingParams(**{option: value})  # type: ignore[arg-type]
