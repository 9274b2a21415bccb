"""gpt-oss's mixture of experts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from kvhybrid.models.layers.experts import Experts


class ClampedExperts(Experts):
    """The weights are a softmax over the picked experts only. All projections have a bias.

    Each expert computes ``down((up + 1) · gate · sigmoid(alpha · gate))``, with gate clamped from above and up on
    both sides.
    """

    def __init__(
        self, width: int, inner: int, num_experts: int, top_k: int, *, alpha: float, limit: float
    ) -> None:
        super().__init__(width, inner, num_experts, top_k, lambda gate: gate * torch.sigmoid(alpha * gate))
        self.limit = limit
        self.router = nn.Linear(width, num_experts)
        self.gate_up_proj_bias = nn.Parameter(torch.empty(num_experts, 2 * inner))
        self.down_proj_bias = nn.Parameter(torch.empty(num_experts, width))

    def fill(self, generator: torch.Generator) -> None:
        super().fill(generator)
        self.gate_up_proj_bias.zero_()
        self.down_proj_bias.zero_()

    def route(self, x_TM: Tensor) -> tuple[Tensor, Tensor]:
        top = self.router(x_TM).topk(self.top_k, dim=-1)
        return top.values.softmax(-1, dtype=torch.float32), top.indices

    def feed(self, expert: int, x_XM: Tensor) -> Tensor:
        both = functional.linear(x_XM, self.gate_up_proj[expert], self.gate_up_proj_bias[expert])
        gate, up = both.chunk(2, dim=-1)
        inner = (up.clamp(-self.limit, self.limit) + 1) * self.act(gate.clamp(max=self.limit))
        return functional.linear(inner, self.down_proj[expert], self.down_proj_bias[expert])
