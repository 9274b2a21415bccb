"""Gemma 2 and Gemma 3 (text): layers with a window among layers that see everything.

Sources: Gemma 2 (arXiv:2408.00118), Gemma 3 (arXiv:2503.19786), and their Hugging Face configs.
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
from kvhybrid.models.layers.norm import OffsetRMSNorm
from kvhybrid.models.layers.plans import Plans
from kvhybrid.models.layers.rope import Rope, Rotation

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class GemmaConfig:
    """What the forward pass needs to know, read from either generation's config."""

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
    tied: bool
    query_scale: float
    head_norms: bool
    attention_cap: float | None
    logit_cap: float | None
    window: int
    layer_types: tuple[str, ...]
    ropes: Mapping[str, Rope]

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> GemmaConfig:
        """From the dict of a ``config.json``; keys that it leaves out have the family's defaults."""
        third = config["model_type"] != "gemma2"
        text: Mapping[str, Any] = config.get("text_config") or config
        if text.get("use_bidirectional_attention"):
            raise ValueError("use_bidirectional_attention leaves no causal cache; only false is accepted")
        if third and text.get("attn_logit_softcapping") is not None:
            raise ValueError("Gemma 3 has no attention soft-cap; attn_logit_softcapping must be null")
        layer_types = _layer_types(text, third)
        head_size = text.get("head_dim", 256)
        return cls(
            vocab_size=text.get("vocab_size", 262_208 if third else 256_000),
            width=text.get("hidden_size", 2304),
            inner=text.get("intermediate_size", 9216),
            num_heads=text.get("num_attention_heads", 8),
            num_kv_heads=text.get("num_key_value_heads", 4),
            head_size=head_size,
            max_len=text.get("max_position_embeddings", 131_072 if third else 8192),
            norm_eps=text.get("rms_norm_eps", 1e-6),
            act=activation(text.get("hidden_activation") or "gelu_pytorch_tanh"),
            bias=text.get("attention_bias", False),
            tied=config.get("tie_word_embeddings", text.get("tie_word_embeddings", True)),
            query_scale=text.get("query_pre_attn_scalar", 256) ** -0.5,
            head_norms=third,
            attention_cap=None if third else text.get("attn_logit_softcapping", 50.0),
            logit_cap=text.get("final_logit_softcapping", None if third else 30.0),
            window=text.get("sliding_window") or 4096,
            layer_types=layer_types,
            ropes={kind: _rope(text, kind, head_size, third) for kind in sorted(set(layer_types))},
        )


def _layer_types(text: Mapping[str, Any], third: bool) -> tuple[str, ...]:
    """``layer_types``, or every ``sliding_window_pattern``-th layer full in configs from before that key."""
    count = text.get("num_hidden_layers", 26)
    pattern = text.get("sliding_window_pattern") or text.get("_sliding_window_pattern") or (6 if third else 2)
    kinds = text.get("layer_types") or [FULL if (i + 1) % pattern == 0 else SLIDING for i in range(count)]
    if len(kinds) != count or not {*kinds} <= {SLIDING, FULL}:
        raise ValueError(
            f"layer_types must list {SLIDING!r} or {FULL!r} for each of {count} layers, found {list(kinds)}"
        )
    return tuple(kinds)


def _rope(text: Mapping[str, Any], kind: str, head_size: int, third: bool) -> Rope:
    """The rope of one kind of layer: ``rope_parameters`` (one dict, or one a kind), or the older keys."""
    local = third and kind == SLIDING
    base = 10_000.0 if local or not third else 1_000_000.0
    parameters = text.get("rope_parameters")
    if parameters is not None:
        by_kind = {SLIDING, FULL} & set(parameters)
        return Rope.from_parameters(head_size, (parameters.get(kind) or {}) if by_kind else parameters, base)
    if local:
        return Rope(head_size, float(text.get("rope_local_base_freq") or base))
    theta = text.get("rope_theta") or base
    return Rope.from_parameters(head_size, {"rope_theta": theta, **(text.get("rope_scaling") or {})}, base)


class GemmaLayer(nn.Module):
    """Attention and feed-forward, each between two norms."""

    def __init__(self, config: GemmaConfig, index: int, backends: BackendChoice) -> None:
        super().__init__()
        self.kind = config.layer_types[index]
        width, eps = config.width, config.norm_eps
        need = AttentionNeed(
            layer=f"layers.{index}.self_attn",
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_size=config.head_size,
            scale=config.query_scale,
            visibility=Visibility(window=config.window if self.kind == SLIDING else None),
            soft_cap=config.attention_cap,
        )
        self.input_layernorm = OffsetRMSNorm(width, eps)
        self.self_attn = Attention(
            need,
            width,
            backend=backends.attention,
            bias=config.bias,
            q_norm=OffsetRMSNorm(config.head_size, eps) if config.head_norms else None,
            k_norm=OffsetRMSNorm(config.head_size, eps) if config.head_norms else None,
        )
        self.post_attention_layernorm = OffsetRMSNorm(width, eps)
        self.pre_feedforward_layernorm = OffsetRMSNorm(width, eps)
        self.mlp = GatedMLP(width, config.inner, config.act)
        self.post_feedforward_layernorm = OffsetRMSNorm(width, eps)

    def forward(self, x_TM: Tensor, plans: Plans, rotation: Rotation) -> Tensor:
        read_TM = self.self_attn(self.input_layernorm(x_TM), plans, rotation)
        x_TM = x_TM + self.post_attention_layernorm(read_TM)
        inner_TM = self.mlp(self.pre_feedforward_layernorm(x_TM))
        out_TM: Tensor = x_TM + self.post_feedforward_layernorm(inner_TM)
        return out_TM


class Gemma(Decoder):
    """Gemma 2, and the text part of Gemma 3."""

    model_types = ("gemma2", "gemma3", "gemma3_text")

    def __init__(self, config: GemmaConfig, backends: BackendChoice) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = config.vocab_size
        self.max_model_len = config.max_len
        self.embed_tokens = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(
            GemmaLayer(config, index, backends) for index in range(len(config.layer_types))
        )
        self.norm = OffsetRMSNorm(config.width, config.norm_eps)
        self.lm_head = None if config.tied else nn.Linear(config.width, config.vocab_size, bias=False)
        self.page_multiple = self.attention_page_multiple()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], backends: BackendChoice | None = None) -> Gemma:
        return cls(GemmaConfig.read(config), backends or BackendChoice())

    @classmethod
    def map_weights(cls, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Drops the prefix of the text model and, of a multimodal checkpoint, the part that sees."""
        mapped = {}
        for name, weight in weights.items():
            text = name.replace("language_model.", "").removeprefix("model.").removeprefix("model.")
            if not text.startswith(("vision_tower.", "multi_modal_projector.")):
                mapped[text] = weight
        if GemmaConfig.read(config).tied:
            mapped.pop("lm_head.weight", None)
        return mapped

    def gemma_layers(self) -> list[GemmaLayer]:
        return [layer for layer in self.layers if isinstance(layer, GemmaLayer)]

    @torch.no_grad()
    def forward(self, batch: ForwardBatch) -> Tensor:
        plans = Plans(batch)
        x_TM = self.embed_tokens(batch.token_ids_T)
        # The factor is rounded to the weights' type first, as in training.
        x_TM = x_TM * torch.tensor(self.config.width**0.5, dtype=x_TM.dtype, device=x_TM.device)
        rotations = {
            kind: rope.rotation(batch.positions_T, x_TM.dtype) for kind, rope in self.config.ropes.items()
        }
        for layer in self.gemma_layers():
            x_TM = layer(x_TM, plans, rotations[layer.kind])
        x_RM = self.norm(x_TM[batch.logit_rows])
        logits_RV = self.logits(x_RM)
        cap = self.config.logit_cap
        return logits_RV if cap is None else torch.tanh(logits_RV / cap) * cap
