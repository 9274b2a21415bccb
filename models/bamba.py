"""Bamba: Mamba-2 layers with a few of full attention among them.

Sources: Dao and Gu (arXiv:2405.21060) for Mamba-2, and the Hugging Face config of ibm-ai-platform/Bamba-9B.
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
from kvhybrid.models.layers.mamba2 import Mamba2Mixer, Mamba2Sizes
from kvhybrid.models.layers.mlp import GatedMLP
from kvhybrid.models.layers.norm import RMSNorm
from kvhybrid.models.layers.partial_rope import PartialRope
from kvhybrid.models.layers.plans import Plans
from kvhybrid.models.layers.rope import Rotation


@dataclass(frozen=True)
class BambaConfig:
    """What the forward pass needs to know."""

    vocab_size: int
    width: int
    inner: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_len: int
    norm_eps: float
    act: Activation
    bias: bool
    tied: bool
    attention_layers: frozenset[int]
    rope: PartialRope
    mamba: Mamba2Sizes

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> BambaConfig:
        """From the dict of a ``config.json``; keys that it leaves out have the family's defaults."""
        if config.get("mlp_bias"):
            raise ValueError("mlp_bias: only false is accepted")
        width = config.get("hidden_size", 4096)
        heads = config.get("num_attention_heads", 32)
        head_size = config.get("head_dim") or width // heads
        eps = config.get("rms_norm_eps", 1e-5)
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        return cls(
            vocab_size=config.get("vocab_size", 128_000),
            width=width,
            inner=config.get("intermediate_size", 14_336),
            num_layers=config.get("num_hidden_layers", 32),
            num_heads=heads,
            num_kv_heads=config.get("num_key_value_heads", 8) or heads,
            head_size=head_size,
            max_len=config.get("max_position_embeddings", 262_144),
            norm_eps=eps,
            act=activation(config.get("hidden_act", "silu")),
            bias=config.get("attention_bias", False),
            tied=config.get("tie_word_embeddings", False),
            attention_layers=frozenset(config.get("attn_layer_indices") or ()),
            rope=PartialRope.from_parameters(head_size, rope, config.get("rope_theta") or 10_000.0, part=0.5),
            mamba=Mamba2Sizes.read(config, width, eps),
        )


class BambaLayer(nn.Module):
    """Attention or a Mamba-2 mixer, then a feed-forward."""

    def __init__(self, config: BambaConfig, index: int, backends: BackendChoice) -> None:
        super().__init__()
        width = config.width
        self.self_attn: Attention | None = None
        self.mamba: Mamba2Mixer | None = None
        if index in config.attention_layers:
            need = AttentionNeed(
                layer=f"layers.{index}.self_attn",
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_size=config.head_size,
                scale=config.head_size**-0.5,
                visibility=Visibility(),
            )
            self.self_attn = Attention(need, width, backend=backends.attention, bias=config.bias)
        else:
            self.mamba = Mamba2Mixer(f"layers.{index}.mamba", config.mamba, config.act, backend=backends.mamba)
        self.feed_forward = GatedMLP(width, config.inner, config.act)
        self.input_layernorm = RMSNorm(width, config.norm_eps)
        self.pre_ff_layernorm = RMSNorm(width, config.norm_eps)

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

    model_types = ("bamba",)

    def __init__(self, config: BambaConfig, backends: BackendChoice) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = config.vocab_size
        self.max_model_len = config.max_len
        self.embed_tokens = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(BambaLayer(config, index, backends) for index in range(config.num_layers))
        self.final_layernorm = RMSNorm(config.width, config.norm_eps)
        self.lm_head = None if config.tied else nn.Linear(config.width, config.vocab_size, bias=False)
        self.page_multiple = self.attention_page_multiple()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], backends: BackendChoice | None = None) -> Bamba:
        return cls(BambaConfig.read(config), backends or BackendChoice())

    @classmethod
    def map_weights(cls, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Drops the prefix, and puts each head's queries and keys in the order of `PartialRope`."""
        read = BambaConfig.read(config)
        mapped = {name.removeprefix("model."): weight for name, weight in weights.items()}
        if read.tied:
            mapped.pop("lm_head.weight", None)
        turned = (".self_attn.q_proj.", ".self_attn.k_proj.")
        return {
            name: read.rope.reorder(weight) if any(part in name for part in turned) else weight
            for name, weight in mapped.items()
        }

    @torch.no_grad()
    def forward(self, batch: ForwardBatch) -> Tensor:
        plans = Plans(batch)
        x_TM = self.embed_tokens(batch.token_ids_T)
        rotation = self.config.rope.rotation(batch.positions_T, x_TM.dtype)
        for layer in self.layers:
            x_TM = layer(x_TM, plans, rotation)
        x_RM = self.final_layernorm(x_TM[batch.logit_rows])
        return self.logits(x_RM)
