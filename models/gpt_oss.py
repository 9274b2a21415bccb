"""gpt-oss: layers with a window among layers that see everything, every head with a learned sink.

Sources: the gpt-oss model card (arXiv:2508.10925) and its Hugging Face config.
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
from kvhybrid.models.layers.attention import Attention
from kvhybrid.models.layers.clamped_experts import ClampedExperts
from kvhybrid.models.layers.norm import RMSNorm
from kvhybrid.models.layers.plans import Plans
from kvhybrid.models.layers.rope import Rope, Rotation
from kvhybrid.models.layers.scaled_rope import read_rope

SLIDING, FULL = "sliding_attention", "full_attention"
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}
"""The family's rope where the config says nothing."""


@dataclass(frozen=True)
class GptOssConfig:
    """What the forward pass needs to know."""

    vocab_size: int
    width: int
    inner: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_len: int
    norm_eps: float
    bias: bool
    tied: bool
    num_experts: int
    top_k: int
    alpha: float
    limit: float
    window: int | None
    layer_types: tuple[str, ...]
    rope: Rope

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> GptOssConfig:
        """From the dict of a ``config.json``; keys that it leaves out have the family's defaults."""
        quantization = config.get("quantization_config")
        if quantization:
            method = quantization.get("quant_method")
            raise ValueError(f"quant_method {method!r} is not supported; only float weights are accepted")
        width = config.get("hidden_size", 2880)
        heads = config.get("num_attention_heads", 64)
        head_size = config.get("head_dim", 64) or width // heads
        return cls(
            vocab_size=config.get("vocab_size", 201_088),
            width=width,
            inner=config.get("intermediate_size", 2880),
            num_heads=heads,
            num_kv_heads=config.get("num_key_value_heads", 8) or heads,
            head_size=head_size,
            max_len=config.get("max_position_embeddings", 131_072),
            norm_eps=config.get("rms_norm_eps", 1e-5),
            bias=config.get("attention_bias", True),
            tied=config.get("tie_word_embeddings", False),
            num_experts=config.get("num_local_experts", 128),
            top_k=config.get("num_experts_per_tok", 4),
            alpha=config.get("swiglu_alpha", 1.702),
            limit=config.get("swiglu_limit", 7.0),
            window=config.get("sliding_window", 128),
            layer_types=_layer_types(config),
            rope=_rope(config, head_size),
        )


def _layer_types(config: Mapping[str, Any]) -> tuple[str, ...]:
    """``layer_types``, or a window in every other layer, the first included."""
    count = config.get("num_hidden_layers", 36)
    kinds = config.get("layer_types") or [FULL if index % 2 else SLIDING for index in range(count)]
    if len(kinds) != count or not {*kinds} <= {SLIDING, FULL}:
        raise ValueError(
            f"layer_types must list {SLIDING!r} or {FULL!r} for each of {count} layers, found {list(kinds)}"
        )
    if SLIDING in kinds and config.get("sliding_window", 128) is None:
        raise ValueError(f"layer_types lists {SLIDING!r}, which needs sliding_window, found null")
    return tuple(kinds)


def _rope(config: Mapping[str, Any], head_size: int) -> Rope:
    """``rope_parameters``, or the older ``rope_theta`` and ``rope_scaling``."""
    base = config.get("rope_theta") or 150_000.0
    return read_rope(head_size, config.get("rope_parameters") or config.get("rope_scaling") or YARN, base)


class GptOssLayer(nn.Module):
    """Attention, then a mixture of experts."""

    def __init__(self, config: GptOssConfig, index: int, backends: BackendChoice) -> None:
        super().__init__()
        width, eps = config.width, config.norm_eps
        need = AttentionNeed(
            layer=f"layers.{index}.self_attn",
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_size=config.head_size,
            scale=config.head_size**-0.5,
            visibility=Visibility(window=config.window if config.layer_types[index] == SLIDING else None),
            sink_logits=True,
        )
        self.input_layernorm = RMSNorm(width, eps)
        self.self_attn = Attention(need, width, backend=backends.attention, bias=config.bias)
        self.post_attention_layernorm = RMSNorm(width, eps)
        self.mlp = ClampedExperts(
            width, config.inner, config.num_experts, config.top_k, alpha=config.alpha, limit=config.limit
        )

    def forward(self, x_TM: Tensor, plans: Plans, rotation: Rotation) -> Tensor:
        x_TM = x_TM + self.self_attn(self.input_layernorm(x_TM), plans, rotation)
        out_TM: Tensor = x_TM + self.mlp(self.post_attention_layernorm(x_TM))
        return out_TM


class GptOss(Decoder):
    """gpt-oss, with float weights."""

    model_types = ("gpt_oss",)

    def __init__(self, config: GptOssConfig, backends: BackendChoice) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = config.vocab_size
        self.max_model_len = config.max_len
        self.embed_tokens = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(
            GptOssLayer(config, index, backends) for index in range(len(config.layer_types))
        )
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.lm_head = None if config.tied else nn.Linear(config.width, config.vocab_size, bias=False)
        self.page_multiple = self.attention_page_multiple()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], backends: BackendChoice | None = None) -> GptOss:
        return cls(GptOssConfig.read(config), backends or BackendChoice())

    @classmethod
    def map_weights(cls, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Drops the prefix, and turns the experts' matrices to the way of `nn.Linear`, all gates before all ups
        where checkpoints alternate them."""
        mapped = {}
        for name, weight in weights.items():
            ours = name.removeprefix("model.")
            if ".mlp.experts." in ours:
                ours = ours.replace(".experts.", ".")
                weight = weight if ours.endswith("_bias") else weight.transpose(1, 2)
                if ".gate_up_proj" in ours:
                    weight = torch.cat((weight[:, ::2], weight[:, 1::2]), dim=1)
            mapped[ours] = weight
        if GptOssConfig.read(config).tied:
            mapped.pop("lm_head.weight", None)
        return mapped

    @torch.no_grad()
    def forward(self, batch: ForwardBatch) -> Tensor:
        plans = Plans(batch)
        x_TM = self.embed_tokens(batch.token_ids_T)
        rotation = self.config.rope.rotation(batch.positions_T, x_TM.dtype)
        for layer in self.layers:
            x_TM = layer(x_TM, plans, rotation)
        x_RM = self.norm(x_TM[batch.logit_rows])
        return self.logits(x_RM)
