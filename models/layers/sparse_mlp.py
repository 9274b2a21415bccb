"""A gated feed-forward layer with sparse gates."""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor

from kvhybrid.models.layers.activation import Activation
from kvhybrid.models.layers.mlp import GatedMLP


class SparseMLP(GatedMLP):
    """Only the largest gates of each token are used, about a share ``1 - sparsity`` of them.

    The threshold is the quantile of a normal distribution with the token's mean and standard deviation, which
    avoids sorting.
    """

    def __init__(self, width: int, inner: int, act: Activation, sparsity: float) -> None:
        """Raises ValueError if ``sparsity`` is not in (0, 1)."""
        super().__init__(width, inner, act)
        if not 0 < sparsity < 1:
            raise ValueError(f"activation_sparsity_pattern must hold shares in [0, 1), found {sparsity}")
        self.deviations = NormalDist().inv_cdf(sparsity)

    def forward(self, x_TM: Tensor) -> Tensor:
        gate_TF = self.gate_proj(x_TM)
        # The factor is rounded to the dtype of the weights first, as in training.
        deviations = torch.tensor(self.deviations, dtype=gate_TF.dtype, device=gate_TF.device)
        cut_T1 = gate_TF.mean(-1, keepdim=True) + gate_TF.std(-1, keepdim=True, unbiased=False) * deviations
        out_TM: Tensor = self.down_proj(self.act((gate_TF - cut_T1).relu()) * self.up_proj(x_TM))
        return out_TM
