"""Attention over keys and values that lie gathered in one tensor."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def dense_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, soft_cap: float | None = None, mask: Tensor | None = None
) -> Tensor:
    """What queries ``[..., Q, D]`` read of keys and values ``[..., L, D]``; every axis before these broadcasts.

    ``mask`` is True where a query sees a key; without it every query sees all. Torch's own attention has no
    soft-cap, so that scores with one are computed openly.
    """
    if soft_cap is None:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    scores = (q @ k.transpose(-1, -2)).float() * scale
    scores = torch.tanh(scores / soft_cap) * soft_cap
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1).to(v.dtype) @ v
