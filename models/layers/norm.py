"""Root-mean-square normalization."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """``x / rms(x) · weight`` over the last axis, computed in float32.

    The result is rounded to the input's dtype before it is multiplied by the weight, as in most families.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size))

    def fill(self, generator: torch.Generator) -> None:
        """Initialize an untrained layer."""
        self.weight.fill_(1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * _unit(x, self.eps).to(x.dtype)


class OffsetRMSNorm(RMSNorm):
    """Gemma's: ``x / rms(x) · (1 + weight)``, rounded only at the end."""

    def fill(self, generator: torch.Generator) -> None:
        self.weight.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return _unit(x, self.eps).mul_(1.0 + self.weight.float()).to(x.dtype)


class WideRMSNorm(RMSNorm):
    """Gemma 3n's: ``x / rms(x) · weight``, rounded only at the end."""

    def forward(self, x: Tensor) -> Tensor:
        return (_unit(x, self.eps) * self.weight.float()).to(x.dtype)


def _unit(x: Tensor, eps: float) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
