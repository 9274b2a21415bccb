"""Root-mean-square normalization without a weight."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class UnitNorm(nn.Module):
    """``x / rms(x)`` over the last axis, computed in float32. It commutes with a rotation of ``x``."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)
