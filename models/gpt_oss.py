"""gpt-oss: window and full-attention layers, with a learned sink logit per head.

Sources: the gpt-oss model card (arXiv:2508.10925) and its Hugging Face config.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from kvhybrid.models.base import BackendChoice
from kvhybrid.models.config import count, flag, mapping, number, optional
from kvhybrid.models.decoder import Decoder
from kvhybrid.models.decoder_config import WindowedConfig
from kvhybrid.models.layers.attention import Attention
from kvhybrid.models.layers.clamped_experts import ClampedExperts
from kvhybrid.models.layers.norm import RMSNorm
from kvhybrid.models.layers.plans import Plans
from kvhybrid.models.layers.rope import Rotation

YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}
"""The family's rope if the config has none."""


@dataclass(frozen=True, kw_only=True)
class GptOssConfig(WindowedConfig):
    default_theta: ClassVar[float] = 150_000.0

    vocab_size: int = count(201_088)
    hidden_size: int = count(2880)
    intermediate_size: int = count(2880)
    num_hidden_layers: int = count(36)
    num_attention_heads: int = count(64)
    num_key_value_heads: int | None = optional(count(8))
    head_dim: int | None = optional(count(64))
    max_position_embeddings: int = count(131_072)
    rms_norm_eps: float = number(1e-5)
    attention_bias: bool = flag(True)
    sliding_window: int | None = optional(count(128))
    num_local_experts: int = count(128)
    num_experts_per_tok: int = count(4)
    swiglu_alpha: float = number(1.702)
    swiglu_limit: float = number(7.0)
    quantization_config: Mapping[str, Any] | None = mapping()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantization_config:
            method = self.quantization_config.get("quant_method")
            raise ValueError(
                f"quantization_config: quant_method {method!r} is not supported; only float weights are accepted"
            )

    @property
    def full_period(self) -> int:
        return 2

    @property
    def rope_keys(self) -> dict[str, Any]:
        return super().rope_keys if self.rope_scaling or self.rope_parameters else {**super().rope_keys, **YARN}


class GptOssLayer(nn.Module):
    """Attention, then a mixture of experts."""

    def __init__(self, config: GptOssConfig, index: int, backends: BackendChoice) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        need = config.attention_need(index, visibility=config.visibility(index), sink_logits=True)
        self.input_layernorm = RMSNorm(width, eps)
        self.self_attn = Attention(need, width, backend=backends.attention, bias=config.attention_bias)
        self.post_attention_layernorm = RMSNorm(width, eps)
        self.mlp = ClampedExperts(
            width,
            config.intermediate_size,
            config.num_local_experts,
            config.num_experts_per_tok,
            alpha=config.swiglu_alpha,
            limit=config.swiglu_limit,
        )

    def forward(self, x_TM: Tensor, plans: Plans, rotation: Rotation) -> Tensor:
        x_TM = x_TM + self.self_attn(self.input_layernorm(x_TM), plans, rotation)
        out_TM: Tensor = x_TM + self.mlp(self.post_attention_layernorm(x_TM))
        return out_TM


class GptOss(Decoder):
    """gpt-oss, with float weights."""

    config_class = GptOssConfig
    layer_class = GptOssLayer

    def arrange(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Transposes the experts' matrices to the layout of `nn.Linear`, and moves all gate rows, which alternate
        with the up rows in checkpoints, in front."""
        ours = {}
        for name, weight in weights.items():
            if ".mlp.experts." in name:
                weight = weight if name.endswith("_bias") else weight.transpose(1, 2)
                if ".gate_up_proj" in name:
                    weight = torch.cat((weight[:, ::2], weight[:, 1::2]), dim=1)
            ours[name.replace(".mlp.experts.", ".mlp.")] = weight
        return ours
