"""Llama 4 (text): layers that see their own chunk, among layers that see everything and do not rotate.

Sources: the Hugging Face configs of Llama 4 Scout and Maverick, and scalable softmax (arXiv:2501.19399) for the
queries of layers without rotation.
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
from kvhybrid.models.layers.mlp import GatedMLP
from kvhybrid.models.layers.norm import RMSNorm
from kvhybrid.models.layers.plans import Plans
from kvhybrid.models.layers.rope import Rope, Rotation
from kvhybrid.models.layers.scaled_rope import read_rope
from kvhybrid.models.layers.sigmoid_experts import SigmoidExperts
from kvhybrid.models.layers.unit_norm import UnitNorm

CHUNKED, FULL = "chunked_attention", "full_attention"


@dataclass(frozen=True)
class Temperature:
    """Queries grow with the logarithm of their position, so that a long context does not flatten attention."""

    step: float
    """Tokens: queries grow once for every so many."""
    growth: float

    def scale(self, positions_T: Tensor) -> Tensor:
        return torch.log1p(((positions_T.float() + 1.0) / self.step).floor()) * self.growth + 1.0


@dataclass(frozen=True)
class Llama4Config:
    """What the forward pass needs to know."""

    vocab_size: int
    width: int
    inner: int
    dense_inner: int
    """Feed-forward width of the layers without experts."""
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_len: int
    norm_eps: float
    act: Activation
    bias: bool
    tied: bool
    num_experts: int
    top_k: int
    sparse: frozenset[int]
    """The layers with experts."""
    rotates: tuple[bool, ...]
    layer_types: tuple[str, ...]
    chunk: int | None
    head_norms: bool
    """Of the layers that rotate."""
    temperature: Temperature | None
    """Of the layers that do not."""
    rope: Rope

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Llama4Config:
        """From the dict of a ``config.json``; keys that it leaves out have the family's defaults."""
        text: Mapping[str, Any] = config.get("text_config") or config
        width = text.get("hidden_size", 5120)
        heads = text.get("num_attention_heads", 40)
        head_size = text.get("head_dim", 128) or width // heads
        rotates = _rotates(text)
        tuned = text.get("attn_temperature_tuning", True)
        return cls(
            vocab_size=text.get("vocab_size", 202_048),
            width=width,
            inner=text.get("intermediate_size", 8192),
            dense_inner=text.get("intermediate_size_mlp", 16_384),
            num_heads=heads,
            num_kv_heads=text.get("num_key_value_heads", 8) or heads,
            head_size=head_size,
            max_len=text.get("max_position_embeddings", 131_072),
            norm_eps=text.get("rms_norm_eps", 1e-5),
            act=activation(text.get("hidden_act", "silu")),
            bias=text.get("attention_bias", False),
            tied=config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)),
            num_experts=text.get("num_local_experts", 16),
            top_k=text.get("num_experts_per_tok", 1),
            sparse=_sparse(text, len(rotates)),
            rotates=rotates,
            layer_types=_layer_types(text, rotates),
            chunk=text.get("attention_chunk_size", 8192),
            head_norms=text.get("use_qk_norm", True),
            temperature=Temperature(text.get("floor_scale", 8192), text.get("attn_scale", 0.1)) if tuned else None,
            rope=_rope(text, head_size),
        )


def _rotates(text: Mapping[str, Any]) -> tuple[bool, ...]:
    """``no_rope_layers``, whose ones, against their name, are the layers that rotate; or all but every
    ``no_rope_layer_interval``-th."""
    count = text.get("num_hidden_layers", 48)
    interval = text.get("no_rope_layer_interval", 4)
    marks = text.get("no_rope_layers") or [(index + 1) % interval != 0 for index in range(count)]
    if len(marks) < count:
        raise ValueError(f"no_rope_layers must hold a 1 or a 0 for each of {count} layers, found {list(marks)}")
    return tuple(bool(mark) for mark in marks[:count])


def _sparse(text: Mapping[str, Any], count: int) -> frozenset[int]:
    """``moe_layers``, or every ``interleave_moe_layer_step``-th layer."""
    listed = text.get("moe_layers")
    step = text.get("interleave_moe_layer_step", 1)
    return frozenset(range(step - 1, count, step) if listed is None else listed)


def _layer_types(text: Mapping[str, Any], rotates: tuple[bool, ...]) -> tuple[str, ...]:
    """``layer_types``, or chunks in the layers that rotate."""
    chunk = text.get("attention_chunk_size", 8192)
    kinds = text.get("layer_types") or [CHUNKED if turns and chunk is not None else FULL for turns in rotates]
    if len(kinds) != len(rotates) or not {*kinds} <= {CHUNKED, FULL}:
        raise ValueError(
            f"layer_types must list {CHUNKED!r} or {FULL!r} for each of {len(rotates)} layers, found {list(kinds)}"
        )
    if CHUNKED in kinds and chunk is None:
        raise ValueError(f"layer_types lists {CHUNKED!r}, which needs attention_chunk_size, found null")
    return tuple(kinds)


def _rope(text: Mapping[str, Any], head_size: int) -> Rope:
    """``rope_parameters``, or the older ``rope_theta`` and ``rope_scaling``."""
    base = text.get("rope_theta") or 500_000.0
    return read_rope(head_size, text.get("rope_parameters") or text.get("rope_scaling") or {}, base)


class Llama4Layer(nn.Module):
    """Attention, then a feed-forward, plain or of experts."""

    def __init__(self, config: Llama4Config, index: int, backends: BackendChoice) -> None:
        super().__init__()
        self.rotates = config.rotates[index]
        width, eps = config.width, config.norm_eps
        chunk = config.chunk if config.layer_types[index] == CHUNKED else None
        need = AttentionNeed(
            layer=f"layers.{index}.self_attn",
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_size=config.head_size,
            scale=config.head_size**-0.5,
            visibility=Visibility(chunk=chunk),
        )
        # The family norms behind the rotation; without a weight the order makes no difference.
        normed = config.head_norms and self.rotates
        self.self_attn = Attention(
            need,
            width,
            backend=backends.attention,
            bias=config.bias,
            q_norm=UnitNorm(eps) if normed else None,
            k_norm=UnitNorm(eps) if normed else None,
        )
        self.feed_forward = (
            SigmoidExperts(width, config.inner, config.num_experts, config.top_k, config.act)
            if index in config.sparse
            else GatedMLP(width, config.dense_inner, config.act)
        )
        self.input_layernorm = RMSNorm(width, eps)
        self.post_attention_layernorm = RMSNorm(width, eps)

    def forward(self, x_TM: Tensor, plans: Plans, rotation: Rotation, query_scale_T: Tensor | None) -> Tensor:
        y_TM = self.input_layernorm(x_TM)
        if self.rotates:
            x_TM = x_TM + self.self_attn(y_TM, plans, rotation)
        else:
            x_TM = x_TM + self.self_attn(y_TM, plans, query_scale_T=query_scale_T)
        out_TM: Tensor = x_TM + self.feed_forward(self.post_attention_layernorm(x_TM))
        return out_TM


class Llama4(Decoder):
    """The text part of Llama 4."""

    model_types = ("llama4", "llama4_text")

    def __init__(self, config: Llama4Config, backends: BackendChoice) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = config.vocab_size
        self.max_model_len = config.max_len
        self.embed_tokens = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(
            Llama4Layer(config, index, backends) for index in range(len(config.layer_types))
        )
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.lm_head = None if config.tied else nn.Linear(config.width, config.vocab_size, bias=False)
        self.page_multiple = self.attention_page_multiple()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], backends: BackendChoice | None = None) -> Llama4:
        return cls(Llama4Config.read(config), backends or BackendChoice())

    @classmethod
    def map_weights(cls, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Drops prefixes and, of a multimodal checkpoint, the part that sees; turns the experts' matrices to the
        way of `nn.Linear`; and orders queries and keys as `rotate` pairs them."""
        sizes = Llama4Config.read(config)
        mapped = {}
        for name, weight in weights.items():
            text = name.removeprefix("model.").removeprefix("language_model.").removeprefix("model.")
            if text.startswith(("vision_model.", "multi_modal_projector.")):
                continue
            if ".feed_forward.experts." in text:
                text, weight = text.replace(".experts.", "."), weight.transpose(1, 2)
            elif ".self_attn.q_proj." in text or ".self_attn.k_proj." in text:
                weight = _halves(weight, sizes.head_size)
            mapped[text] = weight
        if sizes.tied:
            mapped.pop("lm_head.weight", None)
        return mapped

    @torch.no_grad()
    def forward(self, batch: ForwardBatch) -> Tensor:
        plans = Plans(batch)
        x_TM = self.embed_tokens(batch.token_ids_T)
        rotation = self.config.rope.rotation(batch.positions_T, x_TM.dtype)
        temperature = self.config.temperature
        query_scale_T = None if temperature is None else temperature.scale(batch.positions_T)
        for layer in self.layers:
            x_TM = layer(x_TM, plans, rotation, query_scale_T)
        x_RM = self.norm(x_TM[batch.logit_rows])
        return self.logits(x_RM)


def _halves(weight: Tensor, head_size: int) -> Tensor:
    """Checkpoints rotate neighbours ``(x[2i], x[2i + 1])`` of a head; `rotate` pairs ``(x[i], x[i + D/2])``.

    Queries and keys are ordered alike, so that their products stay the same.
    """
    neighbours = weight.reshape(-1, head_size // 2, 2, *weight.shape[1:])
    return neighbours.transpose(1, 2).reshape(weight.shape)
