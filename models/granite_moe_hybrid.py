"""Granite 4 hybrid: Mamba-2 layers and a few full-attention layers, each followed by a shared feed-forward layer
and, depending on the config, experts.

Sources: the Hugging Face configs of ibm-granite/granite-4.0-h-tiny and its siblings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn

from kvhybrid.models.base import BackendChoice, ForwardBatch
from kvhybrid.models.config import count, listed, number, optional, part, text
from kvhybrid.models.decoder import Decoder
from kvhybrid.models.decoder_config import DecoderConfig, RotaryEmbedding
from kvhybrid.models.layers.attention import Attention
from kvhybrid.models.layers.experts import Experts
from kvhybrid.models.layers.mamba2 import Mamba2Mixer, Mamba2Sizes
from kvhybrid.models.layers.mlp import GatedMLP
from kvhybrid.models.layers.norm import RMSNorm
from kvhybrid.models.layers.plans import Plans
from kvhybrid.models.layers.rope import Rotation

MAMBA, ATTENTION = ("linear_attention", "mamba"), ("full_attention", "attention")
"""Spellings of the layer types; the second of each is used in older configs."""
EXPERTS = {
    ".block_sparse_moe.router.layer.weight": ".experts.router.weight",
    ".block_sparse_moe.input_linear.weight": ".experts.gate_up_proj",
    ".block_sparse_moe.output_linear.weight": ".experts.down_proj",
    ".block_sparse_moe.router.": ".experts.router.",
    ".block_sparse_moe.experts.": ".experts.",
    ".shared_mlp.output_linear.": ".shared_mlp.down_proj.",
}
"""Parts of weight names in checkpoints or transformers models, and their names here."""


@dataclass(frozen=True, kw_only=True)
class GraniteConfig(DecoderConfig):
    vocab_size: int = count(32_000)
    hidden_size: int = count(4096)
    intermediate_size: int = count(11_008)
    """Width of the experts."""
    shared_intermediate_size: int = count(1024)
    num_hidden_layers: int = count(32)
    num_attention_heads: int = count(32)
    max_position_embeddings: int = count(2048)
    num_local_experts: int | None = optional(count(8, least=0))
    """0 or None: layers have only the shared feed-forward layer, no experts."""
    num_experts_per_tok: int = count(2, least=0)
    embedding_multiplier: float = number(1.0)
    residual_multiplier: float = number(1.0)
    """Factor on the output of every mixer and feed-forward layer."""
    attention_multiplier: float = number(1.0)
    """Factor on attention scores."""
    logits_scaling: float = number(1.0)
    """Divisor of the logits."""
    layers_block_type: tuple[str, ...] | None = listed(text())
    """The older key for ``layer_types``."""
    position_embedding_type: str | None = optional(text(None))
    mamba: Mamba2Sizes = part(Mamba2Sizes)

    @property
    def ropes(self) -> Sequence[RotaryEmbedding | None]:
        return super().ropes if self.position_embedding_type == "rope" else [None] * self.num_hidden_layers

    @cached_property
    def is_attention(self) -> tuple[bool, ...]:
        """Whether each layer is attention."""
        default = self.layers_block_type or [MAMBA[0]] * self.num_hidden_layers
        return tuple(kind in ATTENTION for kind in self.layer_kinds((*MAMBA, *ATTENTION), default))


class GraniteExperts(Experts):
    """A mixture whose weights are a softmax over the picked experts only."""

    def route(self, x_TM: Tensor) -> tuple[Tensor, Tensor]:
        top = self.router(x_TM).float().topk(self.top_k, dim=-1)
        return top.values.softmax(-1), top.indices


class GraniteLayer(nn.Module):
    """Attention or a Mamba-2 mixer, then the shared feed-forward layer and the experts in parallel."""

    def __init__(self, config: GraniteConfig, index: int, backends: BackendChoice) -> None:
        super().__init__()
        width, eps, act = config.hidden_size, config.rms_norm_eps, config.hidden_act
        self.residual_scale = config.residual_multiplier
        self.self_attn: Attention | None = None
        self.mamba: Mamba2Mixer | None = None
        if config.is_attention[index]:
            need = config.attention_need(index, scale=config.attention_multiplier)
            self.self_attn = Attention(need, width, backend=backends.attention, bias=config.attention_bias)
        else:
            name = f"layers.{index}.mamba"
            self.mamba = Mamba2Mixer(name, width, config.mamba, eps, act, backend=backends.mamba)
        self.shared_mlp = GatedMLP(width, config.shared_intermediate_size, act)
        self.experts: GraniteExperts | None = None
        if config.num_local_experts:
            inner, top_k = config.intermediate_size, config.num_experts_per_tok
            self.experts = GraniteExperts(width, inner, config.num_local_experts, top_k, act)
        self.input_layernorm = RMSNorm(width, eps)
        self.post_attention_layernorm = RMSNorm(width, eps)

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

    config: GraniteConfig
    config_class = GraniteConfig
    layer_class = GraniteLayer

    def embed(self, batch: ForwardBatch) -> Tensor:
        return super().embed(batch) * self.config.embedding_multiplier

    def logits(self, x_RM: Tensor) -> Tensor:
        return super().logits(x_RM) / self.config.logits_scaling

    def arrange(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Splits the shared layer's fused gate and up projection."""
        ours: dict[str, Tensor] = {}
        for name, weight in weights.items():
            for theirs, here in EXPERTS.items():
                name = name.replace(theirs, here)
            if ".shared_mlp.input_linear." in name:
                for half, rows in zip(("gate_proj", "up_proj"), weight.chunk(2), strict=True):
                    ours[name.replace("input_linear", half)] = rows
            else:
                ours[name] = weight
        return ours
