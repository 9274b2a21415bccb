"""Attention over gathered keys and values."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def dense_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, soft_cap: float | None = None, mask: Tensor | None = None
) -> Tensor:
    """Attention of queries ``[..., Q, D]`` to keys and values ``[..., L, D]``; the leading axes broadcast.

    ``mask`` is True where a query sees a key; without it, every query sees all keys. Torch's own attention has no
    soft-cap, so with one the scores are computed explicitly.
    """
    if soft_cap is None:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    scores = (q @ k.transpose(-1, -2)).float() * scale
    scores = torch.tanh(scores / soft_cap) * soft_cap
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1).to(v.dtype) @ v
