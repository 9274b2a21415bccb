"""Rotary position embedding of only a part of each head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvhybrid.models.config import number, read_keys
from kvhybrid.models.layers.rope import Rope, Rotation
from kvhybrid.models.layers.scaled_rope import read_rope


@dataclass(frozen=True)
class _Part:
    partial_rotary_factor: float = number()


@dataclass(frozen=True)
class PartialRope:
    """Rotates the first elements of each head and leaves the others unchanged.

    Checkpoints pair the rotated elements among themselves, while `rotate` pairs the first half of a head with the
    second. So the rows of the query and key projections are reordered, in the same way, to place the elements of a
    pair half a head apart. Scores are sums over a head, so they do not change.
    """

    turned: Rope
    head_size: int

    @classmethod
    def from_parameters(
        cls, head_size: int, parameters: Mapping[str, Any], base: float, part: float, where: str
    ) -> PartialRope:
        """From a Hugging Face rope dict, see `read_rope`; ``part`` is the default share of a head that rotates."""
        part = read_keys(_Part, {"partial_rotary_factor": part, **parameters}, where).partial_rotary_factor
        size = int(head_size * part)
        if size % 2 or head_size % 2 or not 0 < size <= head_size:
            raise ValueError(
                f"partial_rotary_factor must leave an even part of a head of {head_size} to turn, found {part}"
            )
        return cls(read_rope(size, parameters, base, where), head_size)

    def rotation(self, positions_T: Tensor, dtype: torch.dtype) -> Rotation:
        """The tables of a batch, for whole heads."""
        cos_TR, sin_TR = self.turned.rotation(positions_T, dtype)
        still_TR = cos_TR.new_zeros(len(cos_TR), (self.head_size - self.turned.head_size) // 2)
        return _halves(cos_TR, still_TR + 1), _halves(sin_TR, still_TR)

    def reorder(self, weight: Tensor) -> Tensor:
        """Reorder the rows of a query or key projection's weight or bias."""
        if len(weight) % self.head_size:
            return weight  # misshapen; the check of all weights gives a better message
        half, turned = self.turned.head_size // 2, self.turned.head_size
        middle = (turned + self.head_size) // 2
        parts = (range(half), range(turned, middle), range(half, turned), range(middle, self.head_size))
        order = torch.tensor([row for part in parts for row in part], device=weight.device)
        return weight.view(-1, self.head_size, *weight.shape[1:])[:, order].flatten(0, 1)


def _halves(turned_TR: Tensor, still_TR: Tensor) -> Tensor:
    low_TR, high_TR = turned_TR.chunk(2, dim=-1)
    return torch.cat((low_TR, still_TR, high_TR, still_TR), dim=-1)
