"""Jamba: Mamba-1 layers, one attention layer in every few, and mixtures of experts.

Sources: Jamba (arXiv:2403.19887) and its Hugging Face config.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn

from kvhybrid.models.backends.base import AttentionNeed
from kvhybrid.models.backends.visibility import Visibility
from kvhybrid.models.base import BackendChoice, ForwardBatch
from kvhybrid.models.decoder import Decoder
from kvhybrid.models.layers.activation import Activation, activation
from kvhybrid.models.layers.attention import Attention
from kvhybrid.models.layers.experts import Experts, stack_experts
from kvhybrid.models.layers.mamba import MambaMixer, MambaSizes
from kvhybrid.models.layers.mlp import GatedMLP
from kvhybrid.models.layers.norm import RMSNorm
from kvhybrid.models.layers.plans import Plans


@dataclass(frozen=True)
class JambaConfig:
    """What the forward pass needs to know."""

    vocab_size: int
    width: int
    inner: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_len: int
    norm_eps: float
    act: Activation
    tied: bool
    num_experts: int
    top_k: int
    expert_period: int
    expert_offset: int
    attention_period: int
    attention_offset: int
    mamba: MambaSizes

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> JambaConfig:
        """From the dict of a ``config.json``; keys that it leaves out have the family's defaults."""
        width = config.get("hidden_size", 4096)
        heads = config.get("num_attention_heads", 32)
        eps = config.get("rms_norm_eps", 1e-6)
        rank = config.get("mamba_dt_rank", "auto")
        return cls(
            vocab_size=config.get("vocab_size", 65_536),
            width=width,
            inner=config.get("intermediate_size", 14_336),
            num_layers=config.get("num_hidden_layers", 32),
            num_heads=heads,
            num_kv_heads=config.get("num_key_value_heads", 8) or heads,
            head_size=config.get("head_dim") or width // heads,
            max_len=config.get("max_position_embeddings", 262_144),
            norm_eps=eps,
            act=activation(config.get("hidden_act", "silu")),
            tied=config.get("tie_word_embeddings", False),
            num_experts=config.get("num_experts", 16),
            top_k=config.get("num_experts_per_tok", 2),
            expert_period=config.get("expert_layer_period", 2),
            expert_offset=config.get("expert_layer_offset", 1),
            attention_period=config.get("attn_layer_period", 8),
            attention_offset=config.get("attn_layer_offset", 4),
            mamba=MambaSizes(
                width=width,
                channels=config.get("mamba_expand", 2) * width,
                state_size=config.get("mamba_d_state", 16),
                conv_width=config.get("mamba_d_conv", 4),
                dt_rank=ceil(width / 16) if rank == "auto" else rank,
                conv_bias=config.get("mamba_conv_bias", True),
                proj_bias=config.get("mamba_proj_bias", False),
                norm_eps=eps,
            ),
        )

    def is_attention(self, index: int) -> bool:
        return index % self.attention_period == self.attention_offset

    def is_sparse(self, index: int) -> bool:
        """Whether the layer's feed-forward is a mixture of experts."""
        return self.num_experts > 1 and index % self.expert_period == self.expert_offset


class JambaLayer(nn.Module):
    """Attention without rotation, or a Mamba mixer; then a feed-forward, plain or of experts."""

    def __init__(self, config: JambaConfig, index: int, backends: BackendChoice) -> None:
        super().__init__()
        width = config.width
        self.self_attn: Attention | None = None
        self.mamba: MambaMixer | None = None
        if config.is_attention(index):
            need = AttentionNeed(
                layer=f"layers.{index}.self_attn",
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_size=config.head_size,
                scale=config.head_size**-0.5,
                visibility=Visibility(),
            )
            self.self_attn = Attention(need, width, backend=backends.attention)
        else:
            self.mamba = MambaMixer(f"layers.{index}.mamba", config.mamba, config.act, backend=backends.mamba)
        self.feed_forward = (
            Experts(width, config.inner, config.num_experts, config.top_k, config.act)
            if config.is_sparse(index)
            else GatedMLP(width, config.inner, config.act)
        )
        self.input_layernorm = RMSNorm(width, config.norm_eps)
        self.pre_ff_layernorm = RMSNorm(width, config.norm_eps)

    def forward(self, x_TM: Tensor, plans: Plans) -> Tensor:
        mixer = self.mamba if self.self_attn is None else self.self_attn
        assert mixer is not None
        x_TM = x_TM + mixer(self.input_layernorm(x_TM), plans)
        out_TM: Tensor = x_TM + self.feed_forward(self.pre_ff_layernorm(x_TM))
        return out_TM


class Jamba(Decoder):
    """Jamba and Jamba 1.5."""

    model_types = ("jamba",)

    def __init__(self, config: JambaConfig, backends: BackendChoice) -> None:
        super().__init__()
        self.vocab_size = config.vocab_size
        self.max_model_len = config.max_len
        self.embed_tokens = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(JambaLayer(config, index, backends) for index in range(config.num_layers))
        self.final_layernorm = RMSNorm(config.width, config.norm_eps)
        self.lm_head = None if config.tied else nn.Linear(config.width, config.vocab_size, bias=False)
        self.page_multiple = self.attention_page_multiple()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], backends: BackendChoice | None = None) -> Jamba:
        return cls(JambaConfig.read(config), backends or BackendChoice())

    @classmethod
    def map_weights(cls, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Drops the prefix, and joins experts that a checkpoint stores one by one."""
        sizes = JambaConfig.read(config)
        mapped = {name.removeprefix("model."): weight for name, weight in weights.items()}
        for index in range(sizes.num_layers):
            stack_experts(mapped, f"layers.{index}.feed_forward.experts", sizes.num_experts)
        if sizes.tied:
            mapped.pop("lm_head.weight", None)
        ours = {name: name.replace(".feed_forward.experts.", ".feed_forward.") for name in mapped}
        return {ours[name]: weight for name, weight in mapped.items()}

    @torch.no_grad()
    def forward(self, batch: ForwardBatch) -> Tensor:
        plans = Plans(batch)
        x_TM = self.embed_tokens(batch.token_ids_T)
        for layer in self.layers:
            x_TM = layer(x_TM, plans)
        x_RM = self.final_layernorm(x_TM[batch.logit_rows])
        return self.logits(x_RM)
