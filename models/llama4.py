"""Llama 4 (text): layers with chunked attention, and layers with full attention without rotation.

Sources: the Hugging Face configs of Llama 4 Scout and Maverick, and scalable softmax (arXiv:2501.19399) for the
queries of layers without rotation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn

from kvhybrid.models.backends.visibility import Visibility
from kvhybrid.models.base import BackendChoice
from kvhybrid.models.config import count, flag, listed, number, optional
from kvhybrid.models.decoder import Decoder
from kvhybrid.models.decoder_config import DecoderConfig, RotaryEmbedding
from kvhybrid.models.layers.attention import Attention
from kvhybrid.models.layers.mlp import GatedMLP
from kvhybrid.models.layers.norm import RMSNorm
from kvhybrid.models.layers.plans import Plans
from kvhybrid.models.layers.rope import Rotation
from kvhybrid.models.layers.scaled_rope import YarnRope
from kvhybrid.models.layers.sigmoid_experts import SigmoidExperts
from kvhybrid.models.layers.unit_norm import UnitNorm

CHUNKED, FULL = "chunked_attention", "full_attention"


@dataclass(frozen=True, kw_only=True)
class Llama4Config(DecoderConfig):
    default_theta: ClassVar[float] = 500_000.0

    vocab_size: int = count(202_048)
    hidden_size: int = count(5120)
    intermediate_size: int = count(8192)
    """Width of the experts."""
    intermediate_size_mlp: int = count(16_384)
    """Feed-forward width of the layers without experts."""
    num_hidden_layers: int = count(48)
    num_attention_heads: int = count(40)
    num_key_value_heads: int | None = optional(count(8))
    head_dim: int | None = optional(count(128))
    max_position_embeddings: int = count(131_072)
    rms_norm_eps: float = number(1e-5)
    num_local_experts: int = count(16)
    num_experts_per_tok: int = count(1)
    moe_layers: tuple[int, ...] | None = listed(count(least=0))
    """Indices of the layers with experts."""
    interleave_moe_layer_step: int = count(1)
    """Without ``moe_layers``, every N-th layer has experts."""
    no_rope_layers: tuple[int, ...] | None = listed(count(least=0, most=1))
    """1 for layers with rotation, 0 for those without, contrary to what the name suggests."""
    no_rope_layer_interval: int = count(4)
    """Without ``no_rope_layers``, every N-th layer has no rotation."""
    attention_chunk_size: int | None = optional(count(8192))
    use_qk_norm: bool = flag(True)
    """Whether layers with rotation normalize their queries and keys."""
    attn_temperature_tuning: bool = flag(True)
    """Whether the other layers scale queries with the position, so that attention stays sharp in a long context.
    The factor is ``1 + attn_scale · log(1 + floor((p + 1) / floor_scale))``."""
    floor_scale: float = number(8192)
    attn_scale: float = number(0.1, zero=True)

    @cached_property
    def rotates(self) -> tuple[bool, ...]:
        """Whether each layer has rotation."""
        num_layers, interval = self.num_hidden_layers, self.no_rope_layer_interval
        marks = self.no_rope_layers or [number % interval for number in range(1, num_layers + 1)]
        if len(marks) < num_layers:
            raise ValueError(
                f"no_rope_layers must hold a 1 or a 0 for each of {num_layers} layers, found {list(marks)}"
            )
        return tuple(mark != 0 for mark in marks[:num_layers])

    @cached_property
    def rope(self) -> RotaryEmbedding:
        rope = super().rope
        # The family normalizes after the rotation, which undoes YaRN's amplitude.
        return replace(rope, amplitude=1.0) if self.use_qk_norm and isinstance(rope, YarnRope) else rope

    @property
    def ropes(self) -> Sequence[RotaryEmbedding | None]:
        return [self.rope if rotates else None for rotates in self.rotates]

    @cached_property
    def is_chunked(self) -> tuple[bool, ...]:
        """Whether each layer is chunked; by default, layers with rotation are."""
        chunk = self.attention_chunk_size
        default = [CHUNKED if rotates and chunk is not None else FULL for rotates in self.rotates]
        kinds = self.layer_kinds((CHUNKED, FULL), default)
        if CHUNKED in kinds and chunk is None:
            raise ValueError(f"layer_types lists {CHUNKED!r}, which needs attention_chunk_size, found null")
        return tuple(kind == CHUNKED for kind in kinds)

    def is_sparse(self, index: int) -> bool:
        """Whether the layer has experts."""
        return (
            (index + 1) % self.interleave_moe_layer_step == 0
            if self.moe_layers is None
            else index in self.moe_layers
        )


class Llama4Layer(nn.Module):
    """Attention, then a feed-forward layer or experts."""

    def __init__(self, config: Llama4Config, index: int, backends: BackendChoice) -> None:
        super().__init__()
        self.config = config
        width, eps, act = config.hidden_size, config.rms_norm_eps, config.hidden_act
        chunk = config.attention_chunk_size if config.is_chunked[index] else None
        # The family normalizes after the rotation; without a weight the order makes no difference.
        normed = config.use_qk_norm and config.rotates[index]
        self.self_attn = Attention(
            config.attention_need(index, visibility=Visibility(chunk=chunk)),
            width,
            backend=backends.attention,
            bias=config.attention_bias,
            q_norm=UnitNorm(eps) if normed else None,
            k_norm=UnitNorm(eps) if normed else None,
        )
        inner, top_k = config.intermediate_size, config.num_experts_per_tok
        self.feed_forward = (
            SigmoidExperts(width, inner, config.num_local_experts, top_k, act)
            if config.is_sparse(index)
            else GatedMLP(width, config.intermediate_size_mlp, act)
        )
        self.input_layernorm = RMSNorm(width, eps)
        self.post_attention_layernorm = RMSNorm(width, eps)

    def forward(self, x_TM: Tensor, plans: Plans, rotation: Rotation | None) -> Tensor:
        growth_T = None
        if rotation is None and self.config.attn_temperature_tuning:
            growth_T = self.query_growth(plans.batch.positions_T)
        x_TM = x_TM + self.self_attn(self.input_layernorm(x_TM), plans, rotation, growth_T)
        out_TM: Tensor = x_TM + self.feed_forward(self.post_attention_layernorm(x_TM))
        return out_TM

    def query_growth(self, positions_T: Tensor) -> Tensor:
        """Factor on each token's queries, ``[T]``."""
        steps_T = ((positions_T.float() + 1.0) / self.config.floor_scale).floor()
        return torch.log1p(steps_T) * self.config.attn_scale + 1.0


class Llama4(Decoder):
    """The text part of Llama 4."""

    config: Llama4Config
    config_class = Llama4Config
    layer_class = Llama4Layer
    other_parts = ("vision_model.", "multi_modal_projector.")

    def arrange(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Transposes the experts' matrices to the layout of `nn.Linear`, and reorders queries and keys for
        `rotate`."""
        ours = {}
        for name, weight in weights.items():
            if ".feed_forward.experts." in name:
                name, weight = name.replace(".experts.", "."), weight.transpose(1, 2)
            elif ".self_attn.q_proj." in name or ".self_attn.k_proj." in name:
                weight = _halves(weight, self.config.head_size)
            ours[name] = weight
        return ours


def _halves(weight: Tensor, head_size: int) -> Tensor:
    """Checkpoints rotate the pairs ``(x[2i], x[2i + 1])`` of a head, `rotate` the pairs ``(x[i], x[i + D/2])``.

    Queries and keys are reordered in the same way, so their products stay the same.
    """
    neighbours = weight.reshape(-1, head_size // 2, 2, *weight.shape[1:])
    return neighbours.transpose(1, 2).reshape(weight.shape)
