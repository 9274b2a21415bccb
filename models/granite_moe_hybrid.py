"""Granite 4 hybrid: Mamba-2 layers with a few of full attention, each followed by a shared feed-forward layer
and, where the config has any, experts.

Sources: the Hugging Face configs of ibm-granite/granite-4.0-h-tiny and its siblings.
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
from kvhybrid.models.layers.attention import Attention
from kvhybrid.models.layers.experts import Experts
from kvhybrid.models.layers.mamba2 import Mamba2Mixer, Mamba2Sizes
from kvhybrid.models.layers.mlp import GatedMLP
from kvhybrid.models.layers.norm import RMSNorm
from kvhybrid.models.layers.plans import Plans
from kvhybrid.models.layers.rope import Rope, Rotation

MAMBA, ATTENTION = ("linear_attention", "mamba"), ("full_attention", "attention")
"""Spellings of a layer's kind; the second of each is that of older configs."""


@dataclass(frozen=True)
class GraniteConfig:
    """What the forward pass needs to know."""

    vocab_size: int
    width: int
    shared_inner: int
    expert_inner: int
    num_experts: int
    """0: no layer has experts, only the shared feed-forward."""
    top_k: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_len: int
    norm_eps: float
    act: Activation
    bias: bool
    tied: bool
    embedding_scale: float
    residual_scale: float
    """What every mixer and feed-forward adds is multiplied by it."""
    score_scale: float
    logit_divisor: float
    is_attention: tuple[bool, ...]
    """Layer by layer."""
    rope: Rope | None
    mamba: Mamba2Sizes

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> GraniteConfig:
        """From the dict of a ``config.json``; keys that it leaves out have the family's defaults."""
        width = config.get("hidden_size", 4096)
        heads = config.get("num_attention_heads", 32)
        head_size = config.get("head_dim") or width // heads
        eps = config.get("rms_norm_eps", 1e-6)
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        theta = config.get("rope_theta") or 10_000.0
        rotates = config.get("position_embedding_type") == "rope"
        return cls(
            vocab_size=config.get("vocab_size", 32_000),
            width=width,
            shared_inner=config.get("shared_intermediate_size", 1024),
            expert_inner=config.get("intermediate_size", 11_008),
            num_experts=config.get("num_local_experts", 8) or 0,
            top_k=config.get("num_experts_per_tok", 2),
            num_heads=heads,
            num_kv_heads=config.get("num_key_value_heads") or heads,
            head_size=head_size,
            max_len=config.get("max_position_embeddings", 2048),
            norm_eps=eps,
            act=activation(config.get("hidden_act", "silu")),
            bias=config.get("attention_bias", False),
            tied=config.get("tie_word_embeddings", False),
            embedding_scale=config.get("embedding_multiplier", 1.0),
            residual_scale=config.get("residual_multiplier", 1.0),
            score_scale=config.get("attention_multiplier", 1.0),
            logit_divisor=config.get("logits_scaling", 1.0),
            is_attention=_is_attention(config),
            rope=Rope.from_parameters(head_size, rope, theta) if rotates else None,
            mamba=Mamba2Sizes.read(config, width, eps),
        )


def _is_attention(config: Mapping[str, Any]) -> tuple[bool, ...]:
    count = config.get("num_hidden_layers", 32)
    kinds = config.get("layer_types") or config.get("layers_block_type") or [MAMBA[0]] * count
    if len(kinds) != count or not {*kinds} <= {*MAMBA, *ATTENTION}:
        raise ValueError(
            f"layer_types must list {MAMBA[0]!r} or {ATTENTION[0]!r} for each of {count} layers, "
            f"found {list(kinds)}"
        )
    return tuple(kind in ATTENTION for kind in kinds)


class GraniteExperts(Experts):
    """The weights are a softmax over the picked experts alone."""

    def route(self, x_TM: Tensor) -> tuple[Tensor, Tensor]:
        top = self.router(x_TM).float().topk(self.top_k, dim=-1)
        return top.values.softmax(-1), top.indices


class GraniteLayer(nn.Module):
    """Attention or a Mamba-2 mixer, then the shared feed-forward and the experts side by side."""

    def __init__(self, config: GraniteConfig, index: int, backends: BackendChoice) -> None:
        super().__init__()
        width = config.width
        self.residual_scale = config.residual_scale
        self.self_attn: Attention | None = None
        self.mamba: Mamba2Mixer | None = None
        if config.is_attention[index]:
            need = AttentionNeed(
                layer=f"layers.{index}.self_attn",
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_size=config.head_size,
                scale=config.score_scale,
                visibility=Visibility(),
            )
            self.self_attn = Attention(need, width, backend=backends.attention, bias=config.bias)
        else:
            self.mamba = Mamba2Mixer(f"layers.{index}.mamba", config.mamba, config.act, backend=backends.mamba)
        self.shared_mlp = GatedMLP(width, config.shared_inner, config.act)
        self.experts: GraniteExperts | None = None
        if config.num_experts:
            self.experts = GraniteExperts(width, config.expert_inner, config.num_experts, config.top_k, config.act)
        self.input_layernorm = RMSNorm(width, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(width, config.norm_eps)

    def forward(self, x_TM: Tensor, plans: Plans, rotation: Rotation | None) -> Tensor:
        normed_TM = self.input_layernorm(x_TM)
        if self.self_attn is not None:
            x_TM = x_TM + self.self_attn(normed_TM, plans, rotation) * self.residual_scale
        elif self.mamba is not None:
            x_TM = x_TM + self.mamba(normed_TM, plans) * self.residual_scale
        normed_TM = self.post_attention_layernorm(x_TM)
        added_TM: Tensor = self.shared_mlp(normed_TM)
        if self.experts is not None:
            added_TM = self.experts(normed_TM) + added_TM
        return x_TM + added_TM * self.residual_scale


class GraniteMoeHybrid(Decoder):
    """Granite 4 H, with experts or without."""

    model_types = ("granitemoehybrid",)

    def __init__(self, config: GraniteConfig, backends: BackendChoice) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = config.vocab_size
        self.max_model_len = config.max_len
        self.embed_tokens = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(
            GraniteLayer(config, index, backends) for index in range(len(config.is_attention))
        )
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.lm_head = None if config.tied else nn.Linear(config.width, config.vocab_size, bias=False)
        self.page_multiple = self.attention_page_multiple()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], backends: BackendChoice | None = None) -> GraniteMoeHybrid:
        return cls(GraniteConfig.read(config), backends or BackendChoice())

    @classmethod
    def map_weights(cls, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Drops the prefix, takes the shared layer's first two matrices apart, and reads experts under the
        names of a checkpoint and of a live model."""
        names = {
            ".block_sparse_moe.router.layer.weight": ".experts.router.weight",
            ".block_sparse_moe.input_linear.weight": ".experts.gate_up_proj",
            ".block_sparse_moe.output_linear.weight": ".experts.down_proj",
            ".block_sparse_moe.router.": ".experts.router.",
            ".block_sparse_moe.experts.": ".experts.",
            ".shared_mlp.output_linear.": ".shared_mlp.down_proj.",
        }
        mapped: dict[str, Tensor] = {}
        for name, weight in weights.items():
            name = name.removeprefix("model.")
            for theirs, ours in names.items():
                name = name.replace(theirs, ours)
            if ".shared_mlp.input_linear." in name:
                for part, half in zip(("gate_proj", "up_proj"), weight.chunk(2), strict=True):
                    mapped[name.replace("input_linear", part)] = half
            else:
                mapped[name] = weight
        if GraniteConfig.read(config).tied:
            mapped.pop("lm_head.weight", None)
        return mapped

    @torch.no_grad()
    def forward(self, batch: ForwardBatch) -> Tensor:
        plans = Plans(batch)
        x_TM = self.embed_tokens(batch.token_ids_T) * self.config.embedding_scale
        rope = self.config.rope
        rotation = None if rope is None else rope.rotation(batch.positions_T, x_TM.dtype)
        for layer in self.layers:
            x_TM = layer(x_TM, plans, rotation)
        x_RM = self.norm(x_TM[batch.logit_rows])
        return self.logits(x_RM) / self.config.logit_divisor
