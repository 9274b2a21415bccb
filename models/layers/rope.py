"""Rotary position embedding (Su et al., 2021), with linear scaling of positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, ``[T, D]`` each."""


@dataclass(frozen=True)
class Rope:
    """Rope parameters; layers with equal parameters share the tables of a batch."""

    head_size: int
    base: float
    factor: float = 1.0
    """Positions are divided by it."""

    def frequencies(self, device: torch.device) -> Tensor:
        """Rotation per position of each of the ``D / 2`` pairs, in radians, float32."""
        halves = torch.arange(0, self.head_size, 2, dtype=torch.float32, device=device)
        return 1.0 / self.base ** (halves / self.head_size) / self.factor

    def rotation(self, positions_T: Tensor, dtype: torch.dtype) -> Rotation:
        """The tables of a batch, computed in float32 and returned as ``dtype``."""
        angles = positions_T[:, None].float() * self.frequencies(positions_T.device)
        angles_TD = torch.cat((angles, angles), dim=-1)
        return angles_TD.cos().to(dtype), angles_TD.sin().to(dtype)


def rotate(x_THD: Tensor, rotation: Rotation) -> Tensor:
    """Rotate each pair ``(x[i], x[i + D/2])`` by its angle."""
    cos_T1D, sin_T1D = (table[:, None] for table in rotation)
    low, high = x_THD.chunk(2, dim=-1)
    return x_THD * cos_T1D + torch.cat((-high, low), dim=-1) * sin_T1D
