"""Gemma 2 and Gemma 3 (text): window layers and full-attention layers.

Sources: Gemma 2 (arXiv:2408.00118), Gemma 3 (arXiv:2503.19786), and their Hugging Face configs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from kvhybrid.models.base import BackendChoice
from kvhybrid.models.config import activation, count, flag, number, optional
from kvhybrid.models.decoder import Decoder
from kvhybrid.models.decoder_config import WindowedConfig, local_ropes
from kvhybrid.models.layers.activation import Activation
from kvhybrid.models.layers.attention import Attention
from kvhybrid.models.layers.mlp import GatedMLP
from kvhybrid.models.layers.norm import OffsetRMSNorm
from kvhybrid.models.layers.plans import Plans
from kvhybrid.models.layers.rope import Rope, Rotation
from kvhybrid.models.layers.scaled_embedding import ScaledEmbedding


@dataclass(frozen=True, kw_only=True)
class Gemma2Config(WindowedConfig):
    head_norms: ClassVar[bool] = False
    """Whether queries and keys are normalized."""

    vocab_size: int = count(256_000)
    hidden_size: int = count(2304)
    intermediate_size: int = count(9216)
    num_hidden_layers: int = count(26)
    num_attention_heads: int = count(8)
    num_key_value_heads: int | None = optional(count(4))
    head_dim: int | None = optional(count(256))
    max_position_embeddings: int = count(8192)
    hidden_act: Activation = activation("gelu_pytorch_tanh", key="hidden_activation")
    tie_word_embeddings: bool = flag(True)
    sliding_window: int | None = optional(count(4096))
    final_logit_softcapping: float | None = optional(number(30.0))
    attn_logit_softcapping: float | None = optional(number(50.0))
    query_pre_attn_scalar: float = number(256)
    use_bidirectional_attention: bool = flag()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.use_bidirectional_attention:
            raise ValueError("use_bidirectional_attention must be false, found true: attention must be causal")

    @property
    def full_period(self) -> int:
        return 2


@dataclass(frozen=True, kw_only=True)
class Gemma3Config(Gemma2Config):
    head_norms: ClassVar[bool] = True

    vocab_size: int = count(262_208)
    max_position_embeddings: int = count(131_072)
    final_logit_softcapping: float | None = optional(number(None))
    attn_logit_softcapping: float | None = optional(number(None))
    sliding_window_pattern: int | None = optional(count(None))
    saved_pattern: int | None = optional(count(None, key="_sliding_window_pattern"))
    """The same setting under the name that transformers saves."""
    rope_local_base_freq: float | None = optional(number(None))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attn_logit_softcapping is not None:
            raise ValueError("attn_logit_softcapping must be null: Gemma 3 has no soft-cap of scores")

    @property
    def full_period(self) -> int:
        return self.sliding_window_pattern or self.saved_pattern or 6

    @property
    def ropes(self) -> list[Rope]:
        return local_ropes(self, self.rope_local_base_freq)


class GemmaLayer(nn.Module):
    """Attention and feed-forward layer, each between two norms."""

    def __init__(self, config: Gemma2Config, index: int, backends: BackendChoice) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        need = config.attention_need(
            index,
            scale=config.query_pre_attn_scalar**-0.5,
            visibility=config.visibility(index),
            soft_cap=config.attn_logit_softcapping,
        )
        self.input_layernorm = OffsetRMSNorm(width, eps)
        self.self_attn = Attention(
            need,
            width,
            backend=backends.attention,
            bias=config.attention_bias,
            q_norm=OffsetRMSNorm(config.head_size, eps) if config.head_norms else None,
            k_norm=OffsetRMSNorm(config.head_size, eps) if config.head_norms else None,
        )
        self.post_attention_layernorm = OffsetRMSNorm(width, eps)
        self.pre_feedforward_layernorm = OffsetRMSNorm(width, eps)
        self.mlp = GatedMLP(width, config.intermediate_size, config.hidden_act)
        self.post_feedforward_layernorm = OffsetRMSNorm(width, eps)

    def forward(self, x_TM: Tensor, plans: Plans, rotation: Rotation) -> Tensor:
        read_TM = self.self_attn(self.input_layernorm(x_TM), plans, rotation)
        x_TM = x_TM + self.post_attention_layernorm(read_TM)
        inner_TM = self.mlp(self.pre_feedforward_layernorm(x_TM))
        out_TM: Tensor = x_TM + self.post_feedforward_layernorm(inner_TM)
        return out_TM


class Gemma2(Decoder):
    """Gemma 2."""

    config: Gemma2Config
    config_class: ClassVar[type[Gemma2Config]] = Gemma2Config
    layer_class: ClassVar[type[nn.Module]] = GemmaLayer
    norm_class = OffsetRMSNorm
    embedding_class = ScaledEmbedding


class Gemma3(Gemma2):
    """The text part of Gemma 3."""

    config: Gemma3Config
    config_class = Gemma3Config
    other_parts = ("vision_tower.", "multi_modal_projector.")
