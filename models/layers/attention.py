"""Self-attention over a paged cache, for a ragged batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kvhybrid.models.backends import attention_backends
from kvhybrid.models.backends.base import AttentionBackend, AttentionNeed
from kvhybrid.models.layers.cached import CachedLayer, dtype_name
from kvhybrid.models.layers.plans import Plans
from kvhybrid.models.layers.rope import Rotation, rotate
from kvhybrid.specs import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    SinkWindowSpec,
    SlidingWindowSpec,
)


class Attention(CachedLayer):
    """Projections, optional norms of queries, keys and values, optional rotation, and a backend for the rest.

    ``sinks`` are the layer's sink logits, one per query head, if it needs them.
    """

    backend: AttentionBackend

    def __init__(
        self,
        need: AttentionNeed,
        width: int,
        *,
        backend: str,
        bias: bool = False,
        q_norm: nn.Module | None = None,
        k_norm: nn.Module | None = None,
        v_norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.name = need.layer
        self.need = need
        self.backend = attention_backends.find(backend)(need)
        self.q_proj = nn.Linear(width, need.num_heads * need.head_size, bias=bias)
        self.k_proj = nn.Linear(width, need.num_kv_heads * need.head_size, bias=bias)
        self.v_proj = nn.Linear(width, need.num_kv_heads * need.head_size, bias=bias)
        self.o_proj = nn.Linear(need.num_heads * need.head_size, width, bias=bias)
        self.q_norm = q_norm
        self.k_norm = k_norm
        self.v_norm = v_norm
        self.sinks = nn.Parameter(torch.empty(need.num_heads)) if need.sink_logits else None

    def fill(self, generator: torch.Generator) -> None:
        """In an untrained layer, queries are four times as large as keys, which makes attention sharp.

        Otherwise it averages many tokens, which hardly changes from token to token, so the model repeats itself.
        """
        if self.q_norm is None:
            self.q_proj.weight.mul_(4.0)
        else:
            for weight in self.q_norm.parameters():
                weight.add_(3.0)
        if self.sinks is not None:
            self.sinks.zero_()

    def spec(self, block_size: int, dtype: torch.dtype) -> KVCacheSpec:
        visibility = self.need.visibility
        page = {
            "block_size": block_size,
            "num_kv_heads": self.need.num_kv_heads,
            "head_size": self.need.head_size,
        }
        name = dtype_name(dtype)
        if visibility.sinks:
            if visibility.window is None or visibility.chunk is not None:
                raise ValueError(f"layer {self.name}: sinks are only supported together with a window")
            return SinkWindowSpec(**page, dtype=name, window=visibility.window, sinks=visibility.sinks)
        if visibility.window is not None:
            return SlidingWindowSpec(**page, dtype=name, window=visibility.window)
        if visibility.chunk is not None:
            return ChunkedLocalAttentionSpec(**page, dtype=name, chunk=visibility.chunk)
        return FullAttentionSpec(**page, dtype=name)

    def forward(
        self,
        x_TM: Tensor,
        plans: Plans,
        rotation: Rotation | None = None,
        query_scale_T: Tensor | None = None,
    ) -> Tensor:
        """``query_scale_T`` multiplies each token's queries, in addition to the scale of the scores."""
        q_THD, k_TKD, v_TKD = (
            project(x_TM).view(len(x_TM), -1, self.need.head_size)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.q_norm is not None:
            q_THD = self.q_norm(q_THD)
        if self.k_norm is not None:
            k_TKD = self.k_norm(k_TKD)
        if self.v_norm is not None:
            v_TKD = self.v_norm(v_TKD)
        if rotation is not None:
            q_THD, k_TKD = rotate(q_THD, rotation), rotate(k_TKD, rotation)
        if query_scale_T is not None:
            q_THD = (q_THD * query_scale_T[:, None, None]).to(q_THD.dtype)
        plan = plans.plan(self.name, self.backend)
        if self.sinks is None:
            read_THD = self.backend.attend(q_THD, k_TKD, v_TKD, self.cache, plan)
        else:
            read_THD = self.backend.attend_with_sinks(q_THD, k_TKD, v_TKD, self.sinks, self.cache, plan)
        return self.project_out(read_THD.flatten(1), x_TM)

    def project_out(self, read_TC: Tensor, x_TM: Tensor) -> Tensor:
        """Project the heads' outputs ``read_TC`` to the layer's output; ``x_TM`` is the layer's input."""
        out_TM: Tensor = self.o_proj(read_TC)
        return out_TM
