"""Self-attention with an output gate (Qiu et al., arXiv:2505.06708)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kvhybrid.models.backends.base import AttentionNeed
from kvhybrid.models.layers.attention import Attention


class GatedAttention(Attention):
    """The heads' outputs are multiplied elementwise by the sigmoid of a projection of the layer's input."""

    def __init__(
        self,
        need: AttentionNeed,
        width: int,
        *,
        backend: str,
        bias: bool = False,
        q_norm: nn.Module | None = None,
        k_norm: nn.Module | None = None,
    ) -> None:
        super().__init__(need, width, backend=backend, bias=bias, q_norm=q_norm, k_norm=k_norm)
        self.gate_proj = nn.Linear(width, need.num_heads * need.head_size, bias=bias)

    def project_out(self, read_TC: Tensor, x_TM: Tensor) -> Tensor:
        return super().project_out(read_TC * torch.sigmoid(self.gate_proj(x_TM)), x_TM)
