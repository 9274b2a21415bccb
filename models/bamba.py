"""Bamba: mostly Mamba-2 layers, with a few full-attention layers.

Sources: Dao and Gu (arXiv:2405.21060) for Mamba-2, and the Hugging Face config of ibm-ai-platform/Bamba-9B.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn

from kvhybrid.models.base import BackendChoice
from kvhybrid.models.config import count, flag, listed, number, optional, part
from kvhybrid.models.decoder import Decoder
from kvhybrid.models.decoder_config import DecoderConfig
from kvhybrid.models.layers.attention import Attention
from kvhybrid.models.layers.mamba2 import Mamba2Mixer, Mamba2Sizes
from kvhybrid.models.layers.mlp import GatedMLP
from kvhybrid.models.layers.norm import RMSNorm
from kvhybrid.models.layers.partial_rope import PartialRope
from kvhybrid.models.layers.plans import Plans
from kvhybrid.models.layers.rope import Rotation


@dataclass(frozen=True, kw_only=True)
class BambaConfig(DecoderConfig):
    vocab_size: int = count(128_000)
    hidden_size: int = count(4096)
    intermediate_size: int = count(14_336)
    num_hidden_layers: int = count(32)
    num_attention_heads: int = count(32)
    num_key_value_heads: int | None = optional(count(8))
    max_position_embeddings: int = count(262_144)
    rms_norm_eps: float = number(1e-5)
    mlp_bias: bool = flag()
    attn_layer_indices: tuple[int, ...] | None = listed(count(least=0))
    mamba: Mamba2Sizes = part(Mamba2Sizes)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mlp_bias:
            raise ValueError("mlp_bias must be false, found true")

    @cached_property
    def rope(self) -> PartialRope:
        return PartialRope.from_parameters(
            self.head_size, self.rope_keys, self.default_theta, part=0.5, where=self.rope_source
        )


class BambaLayer(nn.Module):
    """Attention or a Mamba-2 mixer, then a feed-forward layer."""

    def __init__(self, config: BambaConfig, index: int, backends: BackendChoice) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn: Attention | None = None
        self.mamba: Mamba2Mixer | None = None
        if index in (config.attn_layer_indices or ()):
            need = config.attention_need(index)
            self.self_attn = Attention(need, width, backend=backends.attention, bias=config.attention_bias)
        else:
            name, act = f"layers.{index}.mamba", config.hidden_act
            self.mamba = Mamba2Mixer(name, width, config.mamba, eps, act, backend=backends.mamba)
        self.feed_forward = GatedMLP(width, config.intermediate_size, config.hidden_act)
        self.input_layernorm = RMSNorm(width, eps)
        self.pre_ff_layernorm = RMSNorm(width, eps)

    def forward(self, x_TM: Tensor, plans: Plans, rotation: Rotation) -> Tensor:
        normed_TM = self.input_layernorm(x_TM)
        if self.self_attn is not None:
            x_TM = x_TM + self.self_attn(normed_TM, plans, rotation)
        elif self.mamba is not None:
            x_TM = x_TM + self.mamba(normed_TM, plans)
        out_TM: Tensor = x_TM + self.feed_forward(self.pre_ff_layernorm(x_TM))
        return out_TM


class Bamba(Decoder):
    """Bamba 1 and 2."""

    config: BambaConfig
    config_class = BambaConfig
    layer_class = BambaLayer

    def arrange(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Reorders the rows of each head's queries and keys for `PartialRope`."""
        turned = (".self_attn.q_proj.", ".self_attn.k_proj.")
        return {
            name.replace("final_layernorm", "norm"): self.config.rope.reorder(weight)
            if any(part in name for part in turned)
            else weight
            for name, weight in weights.items()
        }
