"""Bidirectional self-attention of an encoder, without a cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kvhybrid.models.backends.dense import dense_attention
from kvhybrid.models.layers.rope import Rotation, rotate

QUERIES_PER_TILE = 512
"""Bounds the memory of the mask and the scores of a long input."""


@dataclass(frozen=True)
class EncoderHeads:
    """The heads of one encoder layer and their window."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    soft_cap: float | None = None
    window: int | None = None
    """Tokens on each side, so that a query attends to ``2 · window + 1``; None: all."""


class BidirectionalAttention(nn.Module):
    """Projections, optional rotation, and attention over one whole input."""

    def __init__(self, heads: EncoderHeads, width: int, *, bias: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(width, heads.num_heads * heads.head_size, bias=bias)
        self.k_proj = nn.Linear(width, heads.num_kv_heads * heads.head_size, bias=bias)
        self.v_proj = nn.Linear(width, heads.num_kv_heads * heads.head_size, bias=bias)
        self.o_proj = nn.Linear(heads.num_heads * heads.head_size, width, bias=bias)

    def forward(self, x_TM: Tensor, rotation: Rotation | None = None) -> Tensor:
        q_THD, k_TKD, v_TKD = (
            project(x_TM).view(len(x_TM), -1, self.heads.head_size)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if rotation is not None:
            q_THD, k_TKD = rotate(q_THD, rotation), rotate(k_TKD, rotation)
        shared = self.heads.num_heads // self.heads.num_kv_heads
        q_HTD = q_THD.transpose(0, 1)
        k_HTD, v_HTD = (x_TKD.transpose(0, 1).repeat_interleave(shared, 0) for x_TKD in (k_TKD, v_TKD))
        read_HTD = torch.cat(
            [
                self._tile(q_HTD, k_HTD, v_HTD, start, min(start + QUERIES_PER_TILE, len(x_TM)))
                for start in range(0, len(x_TM), QUERIES_PER_TILE)
            ],
            dim=1,
        )
        out_TM: Tensor = self.o_proj(read_HTD.transpose(0, 1).flatten(1))
        return out_TM

    def _tile(self, q_HTD: Tensor, k_HTD: Tensor, v_HTD: Tensor, start: int, stop: int) -> Tensor:
        """The attention output of the queries in [start, stop)."""
        window, mask_QL = self.heads.window, None
        first, last = 0, k_HTD.shape[1]
        if window is not None:
            first, last = max(0, start - window), min(last, stop + window)
            queries = torch.arange(start, stop, device=q_HTD.device)[:, None]
            mask_QL = (queries - torch.arange(first, last, device=q_HTD.device)).abs() <= window
        return dense_attention(
            q_HTD[:, start:stop],
            k_HTD[:, first:last],
            v_HTD[:, first:last],
            scale=self.heads.scale,
            soft_cap=self.heads.soft_cap,
            mask=mask_QL,
        )
