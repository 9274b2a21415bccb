"""T5Gemma: Gemma 2's layers as an encoder and as a decoder with cross-attention.

Source: Zhang et al., Encoder-Decoder Gemma (arXiv:2504.06225), and its Hugging Face config.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kvhybrid.models.backends.cross import CrossNeed
from kvhybrid.models.base import BackendChoice, EncoderInput
from kvhybrid.models.config import flag, read_keys, section
from kvhybrid.models.encoder_decoder import EncoderDecoder, token_input
from kvhybrid.models.gemma import Gemma2Config
from kvhybrid.models.layers.attention import Attention
from kvhybrid.models.layers.bidirectional import BidirectionalAttention, EncoderHeads
from kvhybrid.models.layers.cross_attention import CrossAttention
from kvhybrid.models.layers.mlp import GatedMLP
from kvhybrid.models.layers.norm import OffsetRMSNorm
from kvhybrid.models.layers.plans import Plans
from kvhybrid.models.layers.rope import Rotation
from kvhybrid.models.layers.scaled_embedding import ScaledEmbedding


@dataclass(frozen=True, kw_only=True)
class T5GemmaConfig(Gemma2Config):
    """The keys of the decoder, which are those of Gemma 2, and of the encoder."""

    encoder: Gemma2Config

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> T5GemmaConfig:
        tied = read_keys(_Tied, config).tie_word_embeddings
        encoder = read_keys(Gemma2Config, section(config, "encoder") or {}, "encoder.")
        decoder = section(config, "decoder") or {}
        return read_keys(cls, decoder, "decoder.", encoder=encoder, tie_word_embeddings=tied)


@dataclass(frozen=True, kw_only=True)
class _Tied:
    tie_word_embeddings: bool = flag(True)


class T5GemmaEncoderLayer(nn.Module):
    """Bidirectional attention and feed-forward layer, each between two norms."""

    def __init__(self, config: Gemma2Config, index: int) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        heads = EncoderHeads(
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_kv_heads,
            head_size=config.head_size,
            scale=config.query_pre_attn_scalar**-0.5,
            soft_cap=config.attn_logit_softcapping,
            window=config.visibility(index).window,
        )
        self.pre_self_attn_layernorm = OffsetRMSNorm(width, eps)
        self.self_attn = BidirectionalAttention(heads, width, bias=config.attention_bias)
        self.post_self_attn_layernorm = OffsetRMSNorm(width, eps)
        self.pre_feedforward_layernorm = OffsetRMSNorm(width, eps)
        self.mlp = GatedMLP(width, config.intermediate_size, config.hidden_act)
        self.post_feedforward_layernorm = OffsetRMSNorm(width, eps)

    def forward(self, x_TM: Tensor, rotation: Rotation) -> Tensor:
        read_TM = self.self_attn(self.pre_self_attn_layernorm(x_TM), rotation)
        x_TM = x_TM + self.post_self_attn_layernorm(read_TM)
        inner_TM = self.mlp(self.pre_feedforward_layernorm(x_TM))
        out_TM: Tensor = x_TM + self.post_feedforward_layernorm(inner_TM)
        return out_TM


class T5GemmaEncoder(nn.Module):
    """Embedding, layers and final norm, for one whole input."""

    def __init__(self, config: Gemma2Config) -> None:
        super().__init__()
        self.rope = config.rope
        self.embed_tokens = ScaledEmbedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(T5GemmaEncoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = OffsetRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, token_ids_T: Tensor) -> Tensor:
        x_TM = self.embed_tokens(token_ids_T)
        rotation = self.rope.rotation(torch.arange(len(token_ids_T), device=x_TM.device), x_TM.dtype)
        for layer in self.layers:
            x_TM = layer(x_TM, rotation)
        out_TM: Tensor = self.norm(x_TM)
        return out_TM


class T5GemmaLayer(nn.Module):
    """Self-attention, cross-attention and feed-forward layer, each between two norms."""

    def __init__(self, config: T5GemmaConfig, index: int, backends: BackendChoice) -> None:
        super().__init__()
        width, eps, scale = config.hidden_size, config.rms_norm_eps, config.query_pre_attn_scalar**-0.5
        bias, cap = config.attention_bias, config.attn_logit_softcapping
        need = config.attention_need(index, scale=scale, visibility=config.visibility(index), soft_cap=cap)
        cross = CrossNeed(
            f"layers.{index}.cross_attn", need.num_heads, need.num_kv_heads, need.head_size, scale, soft_cap=cap
        )
        self.pre_self_attn_layernorm = OffsetRMSNorm(width, eps)
        self.self_attn = Attention(need, width, backend=backends.attention, bias=bias)
        self.post_self_attn_layernorm = OffsetRMSNorm(width, eps)
        self.pre_cross_attn_layernorm = OffsetRMSNorm(width, eps)
        self.cross_attn = CrossAttention(
            cross, width, config.encoder.hidden_size, backend=backends.cross, bias=bias
        )
        self.post_cross_attn_layernorm = OffsetRMSNorm(width, eps)
        self.pre_feedforward_layernorm = OffsetRMSNorm(width, eps)
        self.mlp = GatedMLP(width, config.intermediate_size, config.hidden_act)
        self.post_feedforward_layernorm = OffsetRMSNorm(width, eps)

    def forward(self, x_TM: Tensor, plans: Plans, rotation: Rotation) -> Tensor:
        read_TM = self.self_attn(self.pre_self_attn_layernorm(x_TM), plans, rotation)
        x_TM = x_TM + self.post_self_attn_layernorm(read_TM)
        read_TM = self.cross_attn(self.pre_cross_attn_layernorm(x_TM), plans)
        x_TM = x_TM + self.post_cross_attn_layernorm(read_TM)
        inner_TM = self.mlp(self.pre_feedforward_layernorm(x_TM))
        out_TM: Tensor = x_TM + self.post_feedforward_layernorm(inner_TM)
        return out_TM


class T5Gemma(EncoderDecoder):
    """T5Gemma for generation. Encoder and decoder may differ in size and have separate embeddings."""

    config: T5GemmaConfig
    config_class = T5GemmaConfig
    layer_class = T5GemmaLayer
    norm_class = OffsetRMSNorm
    embedding_class = ScaledEmbedding

    def add_inputs(self) -> None:
        self.encoder = T5GemmaEncoder(self.config.encoder)
        self.max_encoder_tokens = self.config.encoder.max_position_embeddings
        super().add_inputs()

    def arrange(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name.replace("lm_head.out_proj.", "lm_head."): weight for name, weight in weights.items()}

    def read_encoder_input(self, found: Any) -> EncoderInput:
        """A list of the encoder's token ids, without padding."""
        return token_input(found, self.config.encoder.vocab_size)
