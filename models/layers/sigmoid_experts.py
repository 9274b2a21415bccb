"""Llama 4's mixture of experts."""

from __future__ import annotations

import torch
from torch import Tensor

from kvhybrid.models.layers.activation import Activation
from kvhybrid.models.layers.experts import Experts
from kvhybrid.models.layers.mlp import GatedMLP


class SigmoidExperts(Experts):
    """The input of a picked expert, not its output, is scaled by the sigmoid of the router's logit.

    A shared expert gets every token unscaled.
    """

    def __init__(self, width: int, inner: int, num_experts: int, top_k: int, act: Activation) -> None:
        super().__init__(width, inner, num_experts, top_k, act)
        self.shared_expert = GatedMLP(width, inner, act)

    def forward(self, x_TM: Tensor) -> Tensor:
        out_TM: Tensor = self.shared_expert(x_TM) + super().forward(x_TM)
        return out_TM

    def route(self, x_TM: Tensor) -> tuple[Tensor, Tensor]:
        top = self.router(x_TM).topk(self.top_k, dim=-1)
        return torch.sigmoid(top.values.float()), top.indices

    def weighed(self, expert: int, x_XM: Tensor, shares_X1: Tensor) -> Tensor:
        return self.feed(expert, x_XM * shares_X1)
