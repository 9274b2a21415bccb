"""Gemma 3n (text): window and full-attention layers; the last layers read the cache of earlier ones.

Sources: the Hugging Face configs of Gemma 3n E2B and E4B, AltUp (arXiv:2301.13310), LAuReL (arXiv:2411.07501).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor, nn

from kvhybrid.models.base import BackendChoice, ForwardBatch
from kvhybrid.models.config import activation, count, flag, number, one_or_listed, optional
from kvhybrid.models.decoder import Decoder
from kvhybrid.models.decoder_config import WindowedConfig, local_ropes
from kvhybrid.models.layers.activation import Activation
from kvhybrid.models.layers.altup import AltUp, Streams
from kvhybrid.models.layers.attention import Attention
from kvhybrid.models.layers.laurel import Laurel
from kvhybrid.models.layers.mlp import GatedMLP
from kvhybrid.models.layers.norm import WideRMSNorm
from kvhybrid.models.layers.per_layer_input import PerLayerInput, PerLayerInputs
from kvhybrid.models.layers.plans import Plans
from kvhybrid.models.layers.rope import Rope, Rotation
from kvhybrid.models.layers.scaled_embedding import ScaledEmbedding
from kvhybrid.models.layers.shared_attention import SharedAttention
from kvhybrid.models.layers.sparse_mlp import SparseMLP
from kvhybrid.models.layers.unit_norm import UnitNorm

T = TypeVar("T")

MOST_STREAMS = 1000

PARTS = {
    "embed_tokens_per_layer": "layer_inputs",
    "per_layer_model_projection": "layer_inputs",
    "per_layer_projection_norm": "layer_inputs",
    "altup_projections": "streams",
    "altup_unembed_projections": "streams",
    "per_layer_input_gate": "layer_input",
    "per_layer_projection": "layer_input",
    "post_per_layer_input_norm": "layer_input",
}
"""Weights that are one module level higher in checkpoints, and the submodule that has them here."""


@dataclass(frozen=True, kw_only=True)
class Gemma3nConfig(WindowedConfig):
    vocab_size: int = count(262_400)
    vocab_size_per_layer_input: int = count(262_144)
    """Number of token ids with per-layer embeddings."""
    hidden_size: int = count(2048)
    hidden_size_per_layer_input: int = count(256)
    intermediate_size: int | tuple[int, ...] = one_or_listed(count(16_384))
    activation_sparsity_pattern: float | tuple[float, ...] | None = optional(
        one_or_listed(number(None, zero=True))
    )
    """Share of a layer's gates that are set to zero, 0 to 1."""
    num_hidden_layers: int = count(35)
    num_kv_shared_layers: int = count(15, least=0)
    num_attention_heads: int = count(8)
    num_key_value_heads: int | None = optional(count(2))
    head_dim: int | None = optional(count(256))
    max_position_embeddings: int = count(32_768)
    hidden_act: Activation = activation("gelu_pytorch_tanh", key="hidden_activation")
    tie_word_embeddings: bool = flag(True)
    final_logit_softcapping: float | None = optional(number(30.0))
    sliding_window: int | None = optional(count(512))
    laurel_rank: int = count(64)
    altup_num_inputs: int = count(4, most=MOST_STREAMS)
    altup_active_idx: int = count(0, least=0)
    """Index of the stream that the layers compute."""
    altup_correct_scale: bool = flag(True)
    rope_local_base_freq: float | None = optional(number(None))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.altup_active_idx >= self.altup_num_inputs:
            raise ValueError(
                f"altup_active_idx must be below altup_num_inputs = {self.altup_num_inputs}, "
                f"found {self.altup_active_idx}"
            )

    @property
    def full_period(self) -> int:
        return 5

    @property
    def ropes(self) -> list[Rope]:
        return local_ropes(self, self.rope_local_base_freq)

    @cached_property
    def inner(self) -> Sequence[int]:
        """The width of every layer's feed-forward layer."""
        return self._per_layer("intermediate_size", self.intermediate_size)

    @cached_property
    def sparsity(self) -> Sequence[float]:
        """The share of gates that each layer sets to zero."""
        if self.activation_sparsity_pattern is not None:
            return self._per_layer("activation_sparsity_pattern", self.activation_sparsity_pattern)
        sparse = 10 if self.num_hidden_layers > 10 else 0
        return [0.95] * sparse + [0.0] * (self.num_hidden_layers - sparse)

    @cached_property
    def sources(self) -> Sequence[int | None]:
        """For every layer, the index of the layer whose cache it reads, or None if it has its own cache.

        The last ``num_kv_shared_layers`` layers read the last layer of their type that has its own cache.
        """
        own = self.num_hidden_layers - self.num_kv_shared_layers
        last = {kind: index for index, kind in enumerate(self.kinds[: max(own, 0)])}
        missing = sorted({*self.kinds} - {*last})
        if missing:
            raise ValueError(
                f"num_kv_shared_layers must leave a layer of each kind with a cache of its own, "
                f"found {self.num_kv_shared_layers}, which leaves no {' and no '.join(missing)}"
            )
        return [None if index < own else last[kind] for index, kind in enumerate(self.kinds)]

    def _per_layer(self, key: str, found: T | tuple[T, ...]) -> Sequence[T]:
        """One value per layer; the config may also give a single value for all."""
        if not isinstance(found, tuple):
            return [found] * self.num_hidden_layers
        if len(found) != self.num_hidden_layers:
            raise ValueError(
                f"{key} must be one value, or one for each of {self.num_hidden_layers} layers, found {len(found)}"
            )
        return found


def _attention(config: Gemma3nConfig, index: int, backends: BackendChoice) -> Attention | SharedAttention:
    """Attention with its own cache, or over the cache of the layer's source."""
    width, backend, bias, eps = config.hidden_size, backends.attention, config.attention_bias, config.rms_norm_eps
    source, visibility = config.sources[index], config.visibility(index)
    need = config.attention_need(index, scale=1.0, visibility=visibility, shared_cache=source is not None)
    q_norm = WideRMSNorm(config.head_size, eps)
    if source is not None:
        read = config.attention_need(source).layer
        return SharedAttention(need, width, source=read, backend=backend, bias=bias, q_norm=q_norm)
    k_norm, v_norm = WideRMSNorm(config.head_size, eps), UnitNorm(eps)
    return Attention(need, width, backend=backend, bias=bias, q_norm=q_norm, k_norm=k_norm, v_norm=v_norm)


class Gemma3nLayer(nn.Module):
    """Attention and feed-forward layer on the active stream; AltUp updates the others."""

    def __init__(self, config: Gemma3nConfig, index: int, backends: BackendChoice) -> None:
        super().__init__()
        self.config = config
        width, eps, act = config.hidden_size, config.rms_norm_eps, config.hidden_act
        self.altup = AltUp(width, config.altup_num_inputs, config.altup_active_idx, eps)
        self.input_layernorm = WideRMSNorm(width, eps)
        self.laurel = Laurel(width, config.laurel_rank, eps)
        self.self_attn = _attention(config, index, backends)
        self.post_attention_layernorm = WideRMSNorm(width, eps)
        self.pre_feedforward_layernorm = WideRMSNorm(width, eps)
        inner, sparsity = config.inner[index], config.sparsity[index]
        self.mlp = SparseMLP(width, inner, act, sparsity) if sparsity else GatedMLP(width, inner, act)
        self.post_feedforward_layernorm = WideRMSNorm(width, eps)
        self.layer_input = PerLayerInput(width, config.hidden_size_per_layer_input, act, eps)

    def fill(self, generator: torch.Generator) -> None:
        """Scores are not scaled by the head size, so queries of an untrained layer are initialized smaller."""
        if self.self_attn.q_norm is not None:
            for weight in self.self_attn.q_norm.parameters():
                weight.fill_(4.0 * self.config.head_size**-0.5)

    def forward(self, x_ATM: Tensor, input_TI: Tensor, plans: Plans, rotation: Rotation) -> Tensor:
        predicted_ATM = self.altup.predict(x_ATM)
        x_TM = predicted_ATM[self.altup.active]
        normed_TM = self.input_layernorm(x_TM)
        read_TM = self.post_attention_layernorm(self.self_attn(normed_TM, plans, rotation))
        x_TM = (x_TM + read_TM + self.laurel(normed_TM)) / 2**0.5
        x_TM = x_TM + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x_TM)))
        out_ATM = self.altup.correct(predicted_ATM, x_TM)
        active_TM = out_ATM[self.altup.active]
        if self.config.altup_correct_scale:
            active_TM = active_TM * self.altup.correct_output_scale
        # The first stream does not get the per-layer input.
        out_ATM[1:] += self.layer_input(active_TM, input_TI)
        return out_ATM


class Gemma3n(Decoder):
    """The text part of Gemma 3n."""

    config: Gemma3nConfig
    config_class = Gemma3nConfig
    layer_class = Gemma3nLayer
    norm_class = WideRMSNorm
    embedding_class = ScaledEmbedding
    other_parts = ("vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.")

    def add_inputs(self) -> None:
        super().add_inputs()
        config = self.config
        self.layer_inputs = PerLayerInputs(
            config.vocab_size_per_layer_input,
            config.hidden_size,
            config.num_hidden_layers,
            config.hidden_size_per_layer_input,
            config.rms_norm_eps,
        )
        self.streams = Streams(config.hidden_size, config.altup_num_inputs)

    def arrange(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Drops the key and value weights that released checkpoints have for layers without a cache."""
        unused = tuple(
            f"layers.{index}.self_attn.{part}"
            for index, source in enumerate(self.config.sources)
            if source is not None
            for part in ("k_proj.", "v_proj.", "k_norm.", "v_norm.")
        )
        return {_placed(name): weight for name, weight in weights.items() if not name.startswith(unused)}

    def run_layers(self, x_TM: Tensor, batch: ForwardBatch) -> Tensor:
        plans, rotations = Plans(batch), self.rotations(batch, x_TM.dtype)
        inputs_TNI = self.layer_inputs(batch.token_ids_T, x_TM)
        x_ATM = self.streams.spread(x_TM)
        for layer, input_TI, rotation in zip(self.layers, inputs_TNI.unbind(1), rotations, strict=True):
            x_ATM = layer(x_ATM, input_TI, plans, rotation)
        return self.streams.merge(x_ATM[:, batch.logit_rows])


def _placed(name: str) -> str:
    """The name of a checkpoint's weight in this model's module tree."""
    words = name.split(".")
    at = 2 if words[0] == "layers" else 0
    part = PARTS.get(words[at]) if len(words) > at else None
    return ".".join([*words[:at], *([part] if part else []), *words[at:]])
