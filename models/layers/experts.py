"""Mixture of experts: a router picks a few feed-forward layers for each token."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from kvhybrid.models.layers.activation import Activation


def stack_experts(weights: dict[str, Tensor], prefix: str, num_experts: int) -> None:
    """Replace, in place, the separate weights of each expert (``prefix.0.gate_proj.weight``, …) by
    ``prefix.gate_up_proj`` and ``prefix.down_proj``. If any are missing, nothing changes."""
    for joined, parts in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
        names = [[f"{prefix}.{expert}.{part}.weight" for part in parts] for expert in range(num_experts)]
        if names and all(name in weights for row in names for name in row):
            weights[f"{prefix}.{joined}"] = torch.stack(
                [torch.cat([weights.pop(name) for name in row]) for row in names]
            )


class Experts(nn.Module):
    """``top_k`` of ``num_experts`` gated feed-forward layers, weighted by the router's softmax over all experts.
    The weights of the picked experts are not renormalized, and no token is dropped."""

    def __init__(self, width: int, inner: int, num_experts: int, top_k: int, act: Activation) -> None:
        """Raises ValueError if ``top_k`` is not in [1, num_experts]."""
        super().__init__()
        if not 1 <= top_k <= num_experts:
            raise ValueError(f"num_experts_per_tok must lie in [1, {num_experts}], the experts, found {top_k}")
        self.act = act
        self.top_k = top_k
        self.router = nn.Linear(width, num_experts, bias=False)
        self.gate_up_proj = nn.Parameter(torch.empty(num_experts, 2 * inner, width))
        self.down_proj = nn.Parameter(torch.empty(num_experts, width, inner))

    def fill(self, generator: torch.Generator) -> None:
        """Initialize an untrained layer."""
        for weight in (self.gate_up_proj, self.down_proj):
            weight.normal_(0.0, weight.shape[-1] ** -0.5, generator=generator)

    def forward(self, x_TM: Tensor) -> Tensor:
        shares_TX, chosen_TX = self.route(x_TM)
        chosen_X = chosen_TX.flatten()
        # One row per (token, picked expert), sorted by expert, so that each expert's rows are one slice.
        order_X = chosen_X.argsort(stable=True)
        tokens_X = order_X // self.top_k
        shares_X = shares_TX.flatten()[order_X].to(x_TM.dtype)
        counts = torch.bincount(chosen_X, minlength=self.gate_up_proj.shape[0]).tolist()
        out_TM = torch.zeros_like(x_TM)
        end = 0
        for expert, count in enumerate(counts):
            begin, end = end, end + count
            if count:
                tokens = tokens_X[begin:end]
                x_XM = x_TM.index_select(0, tokens)
                out_TM.index_add_(0, tokens, self.weighed(expert, x_XM, shares_X[begin:end, None]))
        return out_TM

    def route(self, x_TM: Tensor) -> tuple[Tensor, Tensor]:
        """The weights and indices of the picked experts, ``[T, top_k]`` each."""
        top = self.router(x_TM).softmax(-1, dtype=torch.float32).topk(self.top_k, dim=-1)
        return top.values, top.indices

    def weighed(self, expert: int, x_XM: Tensor, shares_X1: Tensor) -> Tensor:
        """The weighted output of ``expert`` for its tokens."""
        return self.feed(expert, x_XM) * shares_X1

    def feed(self, expert: int, x_XM: Tensor) -> Tensor:
        """One expert's feed-forward layer."""
        gate, up = functional.linear(x_XM, self.gate_up_proj[expert]).chunk(2, dim=-1)
        return functional.linear(self.act(gate) * up, self.down_proj[expert])
