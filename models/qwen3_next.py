"""Qwen3-Next: mostly gated delta nets, with a few layers of gated full attention, and mixtures of experts.

Sources: Yang, Kautz and Hatamizadeh (arXiv:2412.06464) for the gated delta net, and the Hugging Face config of
Qwen/Qwen3-Next-80B-A3B-Instruct.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn

from kvhybrid.models.base import BackendChoice
from kvhybrid.models.config import count, flag, listed, number, optional, part
from kvhybrid.models.decoder import Decoder
from kvhybrid.models.decoder_config import DecoderConfig
from kvhybrid.models.layers.experts import stack_experts
from kvhybrid.models.layers.gated_attention import GatedAttention
from kvhybrid.models.layers.gated_delta import GatedDeltaNet, GatedDeltaSizes
from kvhybrid.models.layers.mlp import GatedMLP
from kvhybrid.models.layers.norm import OffsetRMSNorm
from kvhybrid.models.layers.partial_rope import PartialRope
from kvhybrid.models.layers.plans import Plans
from kvhybrid.models.layers.rope import Rotation
from kvhybrid.models.layers.shared_experts import SharedExperts

DELTA, ATTENTION = "linear_attention", "full_attention"


@dataclass(frozen=True, kw_only=True)
class Qwen3NextConfig(DecoderConfig):
    vocab_size: int = count(151_936)
    hidden_size: int = count(2048)
    intermediate_size: int = count(5632)
    """Width of a feed-forward layer without experts."""
    moe_intermediate_size: int = count(512)
    shared_expert_intermediate_size: int = count(512)
    num_hidden_layers: int = count(48)
    num_attention_heads: int = count(16)
    num_key_value_heads: int | None = optional(count(2))
    head_dim: int | None = optional(count(256))
    max_position_embeddings: int = count(32_768)
    partial_rotary_factor: float = number(0.25)
    full_attention_interval: int = count(4)
    """Without ``layer_types``, every N-th layer has attention."""
    num_experts: int = count(512, least=0)
    num_experts_per_tok: int = count(10)
    norm_topk_prob: bool = flag(True)
    """Whether the weights of a token's experts are normalized to add up to one."""
    decoder_sparse_step: int = count(1)
    """Every N-th layer has experts."""
    mlp_only_layers: tuple[int, ...] | None = listed(count(least=0))
    """Indices of layers without experts, in addition."""
    delta: GatedDeltaSizes = part(GatedDeltaSizes)

    @property
    def head_size(self) -> int:
        return self.head_dim or 256

    @cached_property
    def rope(self) -> PartialRope:
        return PartialRope.from_parameters(
            self.head_size,
            self.rope_keys,
            self.default_theta,
            part=self.partial_rotary_factor,
            where=self.rope_source,
        )

    @cached_property
    def is_attention(self) -> tuple[bool, ...]:
        """Whether each layer is full attention."""
        numbers, interval = range(1, self.num_hidden_layers + 1), self.full_attention_interval
        default = [DELTA if number % interval else ATTENTION for number in numbers]
        return tuple(kind == ATTENTION for kind in self.layer_kinds((DELTA, ATTENTION), default))

    def is_sparse(self, index: int) -> bool:
        """Whether the layer has experts."""
        plain = index in (self.mlp_only_layers or ())
        return self.num_experts > 0 and (index + 1) % self.decoder_sparse_step == 0 and not plain


class Qwen3NextLayer(nn.Module):
    """Attention or a gated delta net, then a feed-forward layer or experts."""

    def __init__(self, config: Qwen3NextConfig, index: int, backends: BackendChoice) -> None:
        super().__init__()
        width, eps, act = config.hidden_size, config.rms_norm_eps, config.hidden_act
        self.self_attn: GatedAttention | None = None
        self.linear_attn: GatedDeltaNet | None = None
        if config.is_attention[index]:
            self.self_attn = GatedAttention(
                config.attention_need(index),
                width,
                backend=backends.attention,
                bias=config.attention_bias,
                q_norm=OffsetRMSNorm(config.head_size, eps),
                k_norm=OffsetRMSNorm(config.head_size, eps),
            )
        else:
            name = f"layers.{index}.linear_attn"
            self.linear_attn = GatedDeltaNet(name, width, config.delta, eps, act, backend=backends.gated_delta)
        self.mlp = (
            SharedExperts(
                width,
                config.moe_intermediate_size,
                config.num_experts,
                config.num_experts_per_tok,
                act,
                shared_inner=config.shared_expert_intermediate_size,
                normalised=config.norm_topk_prob,
            )
            if config.is_sparse(index)
            else GatedMLP(width, config.intermediate_size, act)
        )
        self.input_layernorm = OffsetRMSNorm(width, eps)
        self.post_attention_layernorm = OffsetRMSNorm(width, eps)

    def forward(self, x_TM: Tensor, plans: Plans, rotation: Rotation) -> Tensor:
        normed_TM = self.input_layernorm(x_TM)
        if self.self_attn is not None:
            x_TM = x_TM + self.self_attn(normed_TM, plans, rotation)
        elif self.linear_attn is not None:
            x_TM = x_TM + self.linear_attn(normed_TM, plans)
        out_TM: Tensor = x_TM + self.mlp(self.post_attention_layernorm(x_TM))
        return out_TM


class Qwen3Next(Decoder):
    """Qwen3-Next, without its multi-token prediction heads."""

    config: Qwen3NextConfig
    config_class = Qwen3NextConfig
    layer_class = Qwen3NextLayer
    norm_class = OffsetRMSNorm
    other_parts = ("mtp.",)

    def arrange(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Stacks experts, and reorders rows: queries before gates, and heads for `PartialRope`."""
        for index in range(self.config.num_hidden_layers):
            stack_experts(weights, f"layers.{index}.mlp.experts", self.config.num_experts)
        ours: dict[str, Tensor] = {}
        for name, weight in weights.items():
            name = name.replace(".mlp.experts.", ".mlp.").replace(".mlp.gate.", ".mlp.router.")
            ours.update(_in_our_order(self.config, name, weight))
        return ours


def _in_our_order(config: Qwen3NextConfig, name: str, weight: Tensor) -> dict[str, Tensor]:
    """One weight by name with its rows reordered; two if the checkpoint has queries and gates in one."""
    delta, rope, heads = config.delta, config.rope, config.num_attention_heads
    values = delta.num_heads // delta.num_key_heads
    if ".self_attn.q_proj." in name and len(weight) == 2 * heads * config.head_size:
        by_head = weight.view(heads, 2, config.head_size, *weight.shape[1:])
        queries, gates = (part.flatten(0, 1) for part in by_head.unbind(1))
        return {name: rope.reorder(queries), name.replace("q_proj", "gate_proj"): gates}
    if any(part in name for part in (".self_attn.k_proj.", ".self_attn.q_norm.", ".self_attn.k_norm.")):
        return {name: rope.reorder(weight)}
    if name.endswith(".linear_attn.in_proj_qkvz.weight"):
        rows = values * delta.value_size
        return {name: delta.ungroup(weight, [delta.key_size, delta.key_size, rows, rows])}
    if name.endswith(".linear_attn.in_proj_ba.weight"):
        return {name: delta.ungroup(weight, [values, values])}
    return {name: weight}
