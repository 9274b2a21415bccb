"""Qwen3-Next: gated delta nets with a few layers of gated full attention among them, and mixtures of experts.

Sources: Yang, Kautz and Hatamizadeh (arXiv:2412.06464) for the gated delta net, and the Hugging Face config of
Qwen/Qwen3-Next-80B-A3B-Instruct.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kvhybrid.models.backends.base import AttentionNeed
from kvhybrid.models.backends.visibility import Visibility
from kvhybrid.models.base import BackendChoice, ForwardBatch
from kvhybrid.models.decoder import Decoder
from kvhybrid.models.layers.activation import Activation, activation
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


@dataclass(frozen=True)
class Qwen3NextConfig:
    """What the forward pass needs to know."""

    vocab_size: int
    width: int
    inner: int
    """Of a feed-forward without experts."""
    expert_inner: int
    shared_inner: int
    num_experts: int
    top_k: int
    normalised: bool
    """The shares of a token's experts add up to one."""
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_len: int
    norm_eps: float
    act: Activation
    bias: bool
    tied: bool
    is_attention: tuple[bool, ...]
    """Layer by layer, as is the next."""
    is_sparse: tuple[bool, ...]
    rope: PartialRope
    delta: GatedDeltaSizes

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Qwen3NextConfig:
        """From the dict of a ``config.json``; keys that it leaves out have the family's defaults."""
        width = config.get("hidden_size", 2048)
        eps = config.get("rms_norm_eps", 1e-6)
        head_size = config.get("head_dim") or 256
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        theta = config.get("rope_theta") or 10_000.0
        return cls(
            vocab_size=config.get("vocab_size", 151_936),
            width=width,
            inner=config.get("intermediate_size", 5632),
            expert_inner=config.get("moe_intermediate_size", 512),
            shared_inner=config.get("shared_expert_intermediate_size", 512),
            num_experts=config.get("num_experts", 512),
            top_k=config.get("num_experts_per_tok", 10),
            normalised=config.get("norm_topk_prob", True),
            num_heads=config.get("num_attention_heads", 16),
            num_kv_heads=config.get("num_key_value_heads", 2),
            head_size=head_size,
            max_len=config.get("max_position_embeddings", 32_768),
            norm_eps=eps,
            act=activation(config.get("hidden_act", "silu")),
            bias=config.get("attention_bias", False),
            tied=config.get("tie_word_embeddings", False),
            is_attention=_is_attention(config),
            is_sparse=_is_sparse(config),
            rope=PartialRope.from_parameters(
                head_size, rope, theta, part=config.get("partial_rotary_factor", 0.25)
            ),
            delta=GatedDeltaSizes.read(config, width, eps),
        )


def _is_attention(config: Mapping[str, Any]) -> tuple[bool, ...]:
    count = config.get("num_hidden_layers", 48)
    period = config.get("full_attention_interval", 4)
    kinds = config.get("layer_types")
    if kinds is None:
        return tuple((index + 1) % period == 0 for index in range(count))
    if len(kinds) != count or not {*kinds} <= {DELTA, ATTENTION}:
        raise ValueError(
            f"layer_types must list {DELTA!r} or {ATTENTION!r} for each of {count} layers, found {list(kinds)}"
        )
    return tuple(kind == ATTENTION for kind in kinds)


def _is_sparse(config: Mapping[str, Any]) -> tuple[bool, ...]:
    """Which layers have experts."""
    plain = config.get("mlp_only_layers") or ()
    step = config.get("decoder_sparse_step", 1)
    any_experts = config.get("num_experts", 512) > 0
    count = config.get("num_hidden_layers", 48)
    return tuple(any_experts and (index + 1) % step == 0 and index not in plain for index in range(count))


class Qwen3NextLayer(nn.Module):
    """Attention or a gated delta net, then a feed-forward, plain or of experts."""

    def __init__(self, config: Qwen3NextConfig, index: int, backends: BackendChoice) -> None:
        super().__init__()
        width, eps = config.width, config.norm_eps
        self.self_attn: GatedAttention | None = None
        self.linear_attn: GatedDeltaNet | None = None
        if config.is_attention[index]:
            need = AttentionNeed(
                layer=f"layers.{index}.self_attn",
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_size=config.head_size,
                scale=config.head_size**-0.5,
                visibility=Visibility(),
            )
            self.self_attn = GatedAttention(
                need,
                width,
                backend=backends.attention,
                bias=config.bias,
                q_norm=OffsetRMSNorm(config.head_size, eps),
                k_norm=OffsetRMSNorm(config.head_size, eps),
            )
        else:
            self.linear_attn = GatedDeltaNet(
                f"layers.{index}.linear_attn", config.delta, config.act, backend=backends.gated_delta
            )
        self.mlp = (
            SharedExperts(
                width,
                config.expert_inner,
                config.num_experts,
                config.top_k,
                config.act,
                shared_inner=config.shared_inner,
                normalised=config.normalised,
            )
            if config.is_sparse[index]
            else GatedMLP(width, config.inner, config.act)
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
    """Qwen3-Next, without its heads for predicting several tokens at once."""

    model_types = ("qwen3_next",)

    def __init__(self, config: Qwen3NextConfig, backends: BackendChoice) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = config.vocab_size
        self.max_model_len = config.max_len
        self.embed_tokens = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(
            Qwen3NextLayer(config, index, backends) for index in range(len(config.is_attention))
        )
        self.norm = OffsetRMSNorm(config.width, config.norm_eps)
        self.lm_head = None if config.tied else nn.Linear(config.width, config.vocab_size, bias=False)
        self.page_multiple = self.attention_page_multiple()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], backends: BackendChoice | None = None) -> Qwen3Next:
        return cls(Qwen3NextConfig.read(config), backends or BackendChoice())

    @classmethod
    def map_weights(cls, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Drops the prefix and the weights for several tokens at once, stacks experts, and puts rows in the
        order of the layers: queries before gates, and pairs as `PartialRope` turns them."""
        read = Qwen3NextConfig.read(config)
        mapped = {
            name.removeprefix("model."): weight for name, weight in weights.items() if not name.startswith("mtp.")
        }
        for index in range(len(read.is_attention)):
            stack_experts(mapped, f"layers.{index}.mlp.experts", read.num_experts)
        if read.tied:
            mapped.pop("lm_head.weight", None)
        ours: dict[str, Tensor] = {}
        for name, weight in mapped.items():
            name = name.replace(".mlp.experts.", ".mlp.").replace(".mlp.gate.", ".mlp.router.")
            ours.update(_in_our_order(read, name, weight))
        return ours

    @torch.no_grad()
    def forward(self, batch: ForwardBatch) -> Tensor:
        plans = Plans(batch)
        x_TM = self.embed_tokens(batch.token_ids_T)
        rotation = self.config.rope.rotation(batch.positions_T, x_TM.dtype)
        for layer in self.layers:
            x_TM = layer(x_TM, plans, rotation)
        x_RM = self.norm(x_TM[batch.logit_rows])
        return self.logits(x_RM)


def _in_our_order(config: Qwen3NextConfig, name: str, weight: Tensor) -> dict[str, Tensor]:
    """One weight under its name, its rows as our layer keeps them; two where queries and gates lie together."""
    delta, rope = config.delta, config.rope
    values = delta.num_heads // delta.num_key_heads
    if ".self_attn.q_proj." in name and len(weight) == 2 * config.num_heads * config.head_size:
        by_head = weight.view(config.num_heads, 2, config.head_size, *weight.shape[1:])
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
