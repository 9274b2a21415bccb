"""T5Gemma: Gemma 2's layers as an encoder and a decoder; the decoder's also read what the encoder made.

Source: Zhang et al., Encoder-Decoder Gemma (arXiv:2504.06225), and its Hugging Face config.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kvhybrid.models.backends.base import AttentionNeed
from kvhybrid.models.backends.cross import CrossNeed
from kvhybrid.models.backends.visibility import Visibility
from kvhybrid.models.base import BackendChoice, EncoderInput, ForwardBatch
from kvhybrid.models.encoder_decoder import EncoderDecoder, token_input
from kvhybrid.models.layers.activation import Activation, activation
from kvhybrid.models.layers.attention import Attention
from kvhybrid.models.layers.bidirectional import BidirectionalAttention, EncoderHeads
from kvhybrid.models.layers.cross_attention import CrossAttention
from kvhybrid.models.layers.mlp import GatedMLP
from kvhybrid.models.layers.norm import OffsetRMSNorm
from kvhybrid.models.layers.plans import Plans
from kvhybrid.models.layers.rope import Rope, Rotation

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class StackConfig:
    """What the forward pass needs to know of the encoder or of the decoder."""

    vocab_size: int
    width: int
    inner: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_len: int
    norm_eps: float
    act: Activation
    bias: bool
    scale: float
    attention_cap: float | None
    logit_cap: float | None
    window: int
    layer_types: tuple[str, ...]
    rope: Rope

    @classmethod
    def read(cls, stack: Mapping[str, Any]) -> StackConfig:
        """From the ``encoder`` or ``decoder`` of a ``config.json``; keys that it leaves out have defaults."""
        count = stack.get("num_hidden_layers", 26)
        kinds = stack.get("layer_types") or [FULL if i % 2 else SLIDING for i in range(count)]
        if len(kinds) != count or not {*kinds} <= {SLIDING, FULL}:
            raise ValueError(
                f"layer_types must list {SLIDING!r} or {FULL!r} for each of {count} layers, found {list(kinds)}"
            )
        head_size = stack.get("head_dim", 256)
        theta = stack.get("rope_theta", 10_000.0)
        rope = stack.get("rope_parameters") or {"rope_theta": theta, **(stack.get("rope_scaling") or {})}
        return cls(
            vocab_size=stack.get("vocab_size", 256_000),
            width=stack.get("hidden_size", 2304),
            inner=stack.get("intermediate_size", 9216),
            num_heads=stack.get("num_attention_heads", 8),
            num_kv_heads=stack.get("num_key_value_heads", 4),
            head_size=head_size,
            max_len=stack.get("max_position_embeddings", 8192),
            norm_eps=stack.get("rms_norm_eps", 1e-6),
            act=activation(stack.get("hidden_activation") or "gelu_pytorch_tanh"),
            bias=stack.get("attention_bias", False),
            scale=stack.get("query_pre_attn_scalar", 256) ** -0.5,
            attention_cap=stack.get("attn_logit_softcapping", 50.0),
            logit_cap=stack.get("final_logit_softcapping", 30.0),
            window=stack.get("sliding_window") or 4096,
            layer_types=tuple(kinds),
            rope=Rope.from_parameters(head_size, rope, 10_000.0),
        )

    def norm(self) -> OffsetRMSNorm:
        return OffsetRMSNorm(self.width, self.norm_eps)

    def embed(self, embedding: nn.Embedding, token_ids_T: Tensor) -> Tensor:
        """``x_TM`` of tokens. The factor is rounded to the weights' type first, as in training."""
        x_TM: Tensor = embedding(token_ids_T)
        return x_TM * torch.tensor(self.width**0.5, dtype=x_TM.dtype, device=x_TM.device)


class T5GemmaEncoderLayer(nn.Module):
    """Attention to both sides and feed-forward, each between two norms."""

    def __init__(self, config: StackConfig, index: int) -> None:
        super().__init__()
        heads = EncoderHeads(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_size=config.head_size,
            scale=config.scale,
            soft_cap=config.attention_cap,
            window=config.window if config.layer_types[index] == SLIDING else None,
        )
        self.pre_self_attn_layernorm = config.norm()
        self.self_attn = BidirectionalAttention(heads, config.width, bias=config.bias)
        self.post_self_attn_layernorm = config.norm()
        self.pre_feedforward_layernorm = config.norm()
        self.mlp = GatedMLP(config.width, config.inner, config.act)
        self.post_feedforward_layernorm = config.norm()

    def forward(self, x_TM: Tensor, rotation: Rotation) -> Tensor:
        read_TM = self.self_attn(self.pre_self_attn_layernorm(x_TM), rotation)
        x_TM = x_TM + self.post_self_attn_layernorm(read_TM)
        inner_TM = self.mlp(self.pre_feedforward_layernorm(x_TM))
        out_TM: Tensor = x_TM + self.post_feedforward_layernorm(inner_TM)
        return out_TM


class T5GemmaEncoder(nn.Module):
    """Embedding, layers and a norm over one whole input."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(T5GemmaEncoderLayer(config, i) for i in range(len(config.layer_types)))
        self.norm = config.norm()

    def forward(self, token_ids_T: Tensor) -> Tensor:
        x_TM = self.config.embed(self.embed_tokens, token_ids_T)
        positions_T = torch.arange(len(token_ids_T), device=x_TM.device)
        rotation = self.config.rope.rotation(positions_T, x_TM.dtype)
        for layer in self.layers:
            x_TM = layer(x_TM, rotation)
        out_TM: Tensor = self.norm(x_TM)
        return out_TM


class T5GemmaLayer(nn.Module):
    """Attention to the text so far, to the encoder's, and feed-forward, each between two norms."""

    def __init__(self, config: StackConfig, encoder_width: int, index: int, backends: BackendChoice) -> None:
        super().__init__()
        window = config.window if config.layer_types[index] == SLIDING else None
        self.pre_self_attn_layernorm = config.norm()
        self.self_attn = Attention(
            AttentionNeed(
                layer=f"layers.{index}.self_attn",
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_size=config.head_size,
                scale=config.scale,
                visibility=Visibility(window=window),
                soft_cap=config.attention_cap,
            ),
            config.width,
            backend=backends.attention,
            bias=config.bias,
        )
        self.post_self_attn_layernorm = config.norm()
        self.pre_cross_attn_layernorm = config.norm()
        self.cross_attn = CrossAttention(
            CrossNeed(
                layer=f"layers.{index}.cross_attn",
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_size=config.head_size,
                scale=config.scale,
                soft_cap=config.attention_cap,
            ),
            config.width,
            encoder_width,
            backend=backends.cross,
            bias=config.bias,
        )
        self.post_cross_attn_layernorm = config.norm()
        self.pre_feedforward_layernorm = config.norm()
        self.mlp = GatedMLP(config.width, config.inner, config.act)
        self.post_feedforward_layernorm = config.norm()

    def forward(self, x_TM: Tensor, plans: Plans, rotation: Rotation) -> Tensor:
        read_TM = self.self_attn(self.pre_self_attn_layernorm(x_TM), plans, rotation)
        x_TM = x_TM + self.post_self_attn_layernorm(read_TM)
        read_TM = self.cross_attn(self.pre_cross_attn_layernorm(x_TM), plans)
        x_TM = x_TM + self.post_cross_attn_layernorm(read_TM)
        inner_TM = self.mlp(self.pre_feedforward_layernorm(x_TM))
        out_TM: Tensor = x_TM + self.post_feedforward_layernorm(inner_TM)
        return out_TM


class T5Gemma(EncoderDecoder):
    """T5Gemma for generation. Encoder and decoder may differ in size, and each has an embedding of its own."""

    model_types = ("t5gemma",)

    def __init__(self, encoder: StackConfig, decoder: StackConfig, tied: bool, backends: BackendChoice) -> None:
        super().__init__()
        self.config = decoder
        self.vocab_size = decoder.vocab_size
        self.max_model_len = decoder.max_len
        self.max_encoder_tokens = encoder.max_len
        self.encoder = T5GemmaEncoder(encoder)
        self.embed_tokens = nn.Embedding(decoder.vocab_size, decoder.width)
        self.layers = nn.ModuleList(
            T5GemmaLayer(decoder, encoder.width, index, backends) for index in range(len(decoder.layer_types))
        )
        self.norm = decoder.norm()
        self.lm_head = None if tied else nn.Linear(decoder.width, decoder.vocab_size, bias=False)
        self.page_multiple = self.attention_page_multiple()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], backends: BackendChoice | None = None) -> T5Gemma:
        encoder, decoder = (StackConfig.read(config.get(part) or {}) for part in ("encoder", "decoder"))
        return cls(encoder, decoder, config.get("tie_word_embeddings", True), backends or BackendChoice())

    @classmethod
    def map_weights(cls, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        mapped = {}
        for name, weight in weights.items():
            ours = name.removeprefix("model.").removeprefix("decoder.")
            mapped[ours.replace("lm_head.out_proj.", "lm_head.")] = weight
        if config.get("tie_word_embeddings", True):
            mapped.pop("lm_head.weight", None)
        return mapped

    def read_encoder_input(self, found: Any) -> EncoderInput:
        """A list of the encoder's token ids, without padding."""
        return token_input(found, self.encoder.config.vocab_size)

    def encoder_states(self, content: Tensor) -> Tensor:
        states_TM: Tensor = self.encoder(content)
        return states_TM

    @torch.no_grad()
    def forward(self, batch: ForwardBatch) -> Tensor:
        plans = Plans(batch)
        x_TM = self.config.embed(self.embed_tokens, batch.token_ids_T)
        rotation = self.config.rope.rotation(batch.positions_T, x_TM.dtype)
        for layer in self.layers:
            x_TM = layer(x_TM, plans, rotation)
        logits_RV = self.logits(self.norm(x_TM[batch.logit_rows]))
        cap = self.config.logit_cap
        return logits_RV if cap is None else torch.tanh(logits_RV / cap) * cap
