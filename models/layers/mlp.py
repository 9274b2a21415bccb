"""The gated feed-forward layer."""

from __future__ import annotations

from torch import Tensor, nn

from kvhybrid.models.layers.activation import Activation


class GatedMLP(nn.Module):
    """``down(act(gate(x)) · up(x))``."""

    def __init__(self, width: int, inner: int, act: Activation) -> None:
        super().__init__()
        self.act = act
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x_TM: Tensor) -> Tensor:
        out_TM: Tensor = self.down_proj(self.act(self.gate_proj(x_TM)).mul_(self.up_proj(x_TM)))
        return out_TM
