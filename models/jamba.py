"""Jamba: mostly Mamba-1 layers, with an attention layer at a fixed interval, and mixtures of experts.

Sources: Jamba (arXiv:2403.19887) and its Hugging Face config.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from kvhybrid.models.base import BackendChoice
from kvhybrid.models.config import count, optional, part
from kvhybrid.models.decoder import Decoder
from kvhybrid.models.decoder_config import DecoderConfig
from kvhybrid.models.layers.attention import Attention
from kvhybrid.models.layers.experts import Experts, stack_experts
from kvhybrid.models.layers.mamba import MambaMixer, MambaSizes
from kvhybrid.models.layers.mlp import GatedMLP
from kvhybrid.models.layers.norm import RMSNorm
from kvhybrid.models.layers.plans import Plans


@dataclass(frozen=True, kw_only=True)
class JambaConfig(DecoderConfig):
    vocab_size: int = count(65_536)
    hidden_size: int = count(4096)
    intermediate_size: int = count(14_336)
    num_hidden_layers: int = count(32)
    num_attention_heads: int = count(32)
    num_key_value_heads: int | None = optional(count(8))
    max_position_embeddings: int = count(262_144)
    num_experts: int = count(16)
    num_experts_per_tok: int = count(2)
    expert_layer_period: int = count(2)
    expert_layer_offset: int = count(1, least=0)
    attn_layer_period: int = count(8)
    attn_layer_offset: int = count(4, least=0)
    mamba: MambaSizes = part(MambaSizes)

    @property
    def ropes(self) -> Sequence[None]:
        """Attention has no positional encoding: the Mamba layers already carry the order of tokens."""
        return [None] * self.num_hidden_layers

    def is_attention(self, index: int) -> bool:
        return index % self.attn_layer_period == self.attn_layer_offset

    def is_sparse(self, index: int) -> bool:
        """Whether the layer has experts."""
        return self.num_experts > 1 and index % self.expert_layer_period == self.expert_layer_offset


class JambaLayer(nn.Module):
    """Attention without rotation, or a Mamba mixer; then a feed-forward layer or experts."""

    def __init__(self, config: JambaConfig, index: int, backends: BackendChoice) -> None:
        super().__init__()
        width, inner, act = config.hidden_size, config.intermediate_size, config.hidden_act
        self.self_attn: Attention | None = None
        self.mamba: MambaMixer | None = None
        if config.is_attention(index):
            self.self_attn = Attention(config.attention_need(index), width, backend=backends.attention)
        else:
            name, eps = f"layers.{index}.mamba", config.rms_norm_eps
            self.mamba = MambaMixer(name, width, config.mamba, eps, act, backend=backends.mamba)
        self.feed_forward = (
            Experts(width, inner, config.num_experts, config.num_experts_per_tok, act)
            if config.is_sparse(index)
            else GatedMLP(width, inner, act)
        )
        self.input_layernorm = RMSNorm(width, config.rms_norm_eps)
        self.pre_ff_layernorm = RMSNorm(width, config.rms_norm_eps)

    def forward(self, x_TM: Tensor, plans: Plans, rotation: None) -> Tensor:
        mixer = self.mamba if self.self_attn is None else self.self_attn
        assert mixer is not None
        x_TM = x_TM + mixer(self.input_layernorm(x_TM), plans)
        out_TM: Tensor = x_TM + self.feed_forward(self.pre_ff_layernorm(x_TM))
        return out_TM


class Jamba(Decoder):
    """Jamba and Jamba 1.5."""

    config: JambaConfig
    config_class = JambaConfig
    layer_class = JambaLayer

    def arrange(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Stacks the experts, which checkpoints store separately."""
        for index in range(self.config.num_hidden_layers):
            stack_experts(weights, f"layers.{index}.feed_forward.experts", self.config.num_experts)
        return {
            name.replace(".feed_forward.experts.", ".feed_forward.").replace("final_layernorm", "norm"): weight
            for name, weight in weights.items()
        }
