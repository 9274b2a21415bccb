"""Sampling of the next token from a row of logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class SamplingParams:
    """How one request chooses its tokens.

    ``temperature`` 0 is greedy. Otherwise a token is drawn from the softmax of logits / temperature, over the
    ``top_k`` largest logits unless ``top_k`` is 0.
    """

    temperature: float = 0.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be a finite number from 0 up, found {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (all tokens) or more, found {self.top_k}")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must lie in [0, 2**64), found {self.seed}")


def sample(logits_RV: Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
    """Sample one token id per row. ``positions`` are the positions of the new tokens in their sequences.

    A draw depends only on the row's logits, seed and position, so a request gets the same tokens in any batch,
    with any chunks, and after a preemption. All logits must be finite; see `finite_rows`.
    """
    tokens: list[int] = logits_RV.argmax(dim=-1).tolist()
    drawn = [row for row, choice in enumerate(params) if choice.temperature > 0]
    if drawn:
        ids = _draw(logits_RV[drawn], [params[row] for row in drawn], [positions[row] for row in drawn])
        for row, token in zip(drawn, ids, strict=True):
            tokens[row] = token
    return tokens


def finite_rows(logits_RV: Tensor) -> list[bool]:
    """For every row, whether all logits are finite."""
    # A NaN is both minimum and maximum of its row.
    least_R, largest_R = torch.aminmax(logits_RV, dim=-1)
    finite: list[bool] = (least_R.isfinite() & largest_R.isfinite()).tolist()
    return finite


def _draw(logits_RV: Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
    """Invert each row's cumulative distribution at its uniform random number.

    Tokens are in vocabulary order, not sorted by logit, so that rounding differences between two batches move the
    bounds of intervals slightly but never swap intervals.
    """
    temperatures = torch.tensor([choice.temperature for choice in params], dtype=torch.float64)
    # Subtract the largest logit first, so that dividing by a temperature near 0 does not overflow.
    wide_RV = logits_RV.double()
    scaled_RV = (wide_RV - wide_RV.amax(-1, keepdim=True)) / temperatures.to(logits_RV.device)[:, None]
    scaled_RV = _keep_top_k(scaled_RV, [choice.top_k for choice in params])
    cumulative_RV = scaled_RV.softmax(dim=-1).cumsum(dim=-1)
    totals_R1 = cumulative_RV[:, -1:]
    numbers = [_uniform(choice.seed, at) for choice, at in zip(params, positions, strict=True)]
    targets_R1 = torch.tensor(numbers, dtype=torch.float64).to(logits_RV.device)[:, None] * totals_R1
    ids: list[int] = torch.searchsorted(cumulative_RV, targets_R1, right=True)[:, 0].tolist()
    return ids


def _keep_top_k(logits_RV: Tensor, top_ks: Sequence[int]) -> Tensor:
    """The logits, with -inf for tokens outside of a row's ``top_k``."""
    vocab_size = logits_RV.shape[-1]
    kept_RV = logits_RV
    for top_k in {k for k in top_ks if 0 < k < vocab_size}:
        rows = torch.tensor([row for row, k in enumerate(top_ks) if k == top_k], device=logits_RV.device)
        values, ids = logits_RV[rows].topk(top_k, dim=-1)
        only_top = torch.full_like(logits_RV[rows], -torch.inf).scatter(-1, ids, values)
        kept_RV = kept_RV.index_copy(0, rows, only_top)
    return kept_RV


def _uniform(seed: int, position: int) -> float:
    """A number in [0, 1), a pure function of ``seed`` and ``position`` (a counter-based generator)."""
    return float(np.random.Generator(np.random.Philox(key=seed, counter=position)).random())
