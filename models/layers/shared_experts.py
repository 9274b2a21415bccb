"""A mixture of experts with a shared expert, as in the Qwen families."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kvhybrid.models.layers.activation import Activation
from kvhybrid.models.layers.experts import Experts
from kvhybrid.models.layers.mlp import GatedMLP


class SharedExperts(Experts):
    """`Experts` plus a shared expert, weighted for each token by the sigmoid of one logit.

    ``normalised``: the weights of the picked experts are scaled to add up to one.
    """

    def __init__(
        self,
        width: int,
        inner: int,
        num_experts: int,
        top_k: int,
        act: Activation,
        *,
        shared_inner: int,
        normalised: bool,
    ) -> None:
        super().__init__(width, inner, num_experts, top_k, act)
        self.normalised = normalised
        self.shared_expert = GatedMLP(width, shared_inner, act)
        self.shared_expert_gate = nn.Linear(width, 1, bias=False)

    def forward(self, x_TM: Tensor) -> Tensor:
        shared_TM = self.shared_expert(x_TM) * torch.sigmoid(self.shared_expert_gate(x_TM))
        out_TM: Tensor = super().forward(x_TM) + shared_TM
        return out_TM

    def route(self, x_TM: Tensor) -> tuple[Tensor, Tensor]:
        shares_TX, chosen_TX = super().route(x_TM)
        if self.normalised:
            shares_TX = shares_TX / shares_TX.sum(-1, keepdim=True)
        return shares_TX, chosen_TX
