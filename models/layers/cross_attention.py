"""Attention of a decoder to the encoder's output, over a paged cache."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kvhybrid.models.backends import cross_backends
from kvhybrid.models.backends.cross import CrossBackend, CrossNeed
from kvhybrid.models.base import GroupBatch
from kvhybrid.models.layers.cached import CachedLayer, dtype_name
from kvhybrid.models.layers.plans import Plans
from kvhybrid.specs import CrossAttentionSpec, KVCacheSpec


class CrossAttention(CachedLayer):
    """Queries from the decoder; keys and values from the encoder, which are cached once per request."""

    backend: CrossBackend

    def __init__(
        self, need: CrossNeed, width: int, encoder_width: int, *, backend: str, bias: bool = False
    ) -> None:
        super().__init__()
        self.name = need.layer
        self.need = need
        self.backend = cross_backends.find(backend)(need)
        self.q_proj = nn.Linear(width, need.num_heads * need.head_size, bias=bias)
        self.k_proj = nn.Linear(encoder_width, need.num_kv_heads * need.head_size, bias=bias)
        self.v_proj = nn.Linear(encoder_width, need.num_kv_heads * need.head_size, bias=bias)
        self.o_proj = nn.Linear(need.num_heads * need.head_size, width, bias=bias)

    def fill(self, generator: torch.Generator) -> None:
        """Large queries make attention sharp, as in self-attention."""
        self.q_proj.weight.mul_(4.0)

    def spec(self, block_size: int, dtype: torch.dtype) -> KVCacheSpec:
        return CrossAttentionSpec(
            block_size=block_size,
            num_kv_heads=self.need.num_kv_heads,
            head_size=self.need.head_size,
            dtype=dtype_name(dtype),
        )

    def write(self, states_TM: Tensor, group: GroupBatch) -> None:
        """Write the keys and values of the concatenated encoder tokens to the cache."""
        k_TKD, v_TKD = (
            project(states_TM).view(len(states_TM), -1, self.need.head_size)
            for project in (self.k_proj, self.v_proj)
        )
        self.backend.write(k_TKD, v_TKD, self.cache, group)

    def forward(self, x_TM: Tensor, plans: Plans) -> Tensor:
        q_THD = self.q_proj(x_TM).view(len(x_TM), -1, self.need.head_size)
        read_THD = self.backend.attend(q_THD, self.cache, plans.plan(self.name, self.backend))
        out_TM: Tensor = self.o_proj(read_THD.flatten(1))
        return out_TM
