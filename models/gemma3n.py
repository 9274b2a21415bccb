"""Gemma 3n (text): windows among full layers, and last layers that read the cache of earlier ones.

Sources: the Hugging Face configs of Gemma 3n E2B and E4B, AltUp (arXiv:2301.13310), LAuReL (arXiv:2411.07501).
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
from kvhybrid.models.layers.altup import AltUp, Streams
from kvhybrid.models.layers.attention import Attention
from kvhybrid.models.layers.laurel import Laurel
from kvhybrid.models.layers.mlp import GatedMLP
from kvhybrid.models.layers.norm import WideRMSNorm
from kvhybrid.models.layers.per_layer_input import PerLayerInput, PerLayerInputs
from kvhybrid.models.layers.plans import Plans
from kvhybrid.models.layers.rope import Rope, Rotation
from kvhybrid.models.layers.shared_attention import SharedAttention
from kvhybrid.models.layers.sparse_mlp import SparseMLP
from kvhybrid.models.layers.unit_norm import UnitNorm

SLIDING, FULL = "sliding_attention", "full_attention"
THETA = {SLIDING: ("rope_local_base_freq", 10_000.0), FULL: ("rope_theta", 1_000_000.0)}
"""The older key of each kind's rope base, and the base where a config has none."""

OTHER_SENSES = ("vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.")
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
"""Checkpoints keep these weights beside the layers, or beside the parts of a layer; here they lie in a part."""


@dataclass(frozen=True)
class Gemma3nConfig:
    """What the forward pass needs to know."""

    vocab_size: int
    layer_vocab_size: int
    """Tokens that have embeddings of their own for each layer."""
    width: int
    layer_width: int
    """Of the per-layer embeddings."""
    inner: tuple[int, ...]
    sparsity: tuple[float, ...]
    """The share of a layer's gates that stays closed."""
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_len: int
    norm_eps: float
    act: Activation
    bias: bool
    tied: bool
    logit_cap: float | None
    window: int
    layer_types: tuple[str, ...]
    sources: tuple[int | None, ...]
    """The layer whose cache a layer reads, None where it has its own."""
    ropes: Mapping[str, Rope]
    laurel_rank: int
    streams: int
    active: int
    """The stream that the layers compute."""
    scales_output: bool

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Gemma3nConfig:
        """From the dict of a ``config.json``; keys that it leaves out have the family's defaults."""
        text: Mapping[str, Any] = config.get("text_config") or config
        layer_types = _layer_types(text)
        count = len(layer_types)
        head_size = text.get("head_dim", 256)
        sparse = 10 if count > 10 else 0
        return cls(
            vocab_size=text.get("vocab_size", 262_400),
            layer_vocab_size=text.get("vocab_size_per_layer_input", 262_144),
            width=text.get("hidden_size", 2048),
            layer_width=text.get("hidden_size_per_layer_input", 256),
            inner=_per_layer(text, "intermediate_size", count, 16_384),
            sparsity=_per_layer(
                text, "activation_sparsity_pattern", count, [0.95] * sparse + [0.0] * (count - sparse)
            ),
            num_heads=text.get("num_attention_heads", 8),
            num_kv_heads=text.get("num_key_value_heads", 2),
            head_size=head_size,
            max_len=text.get("max_position_embeddings", 32_768),
            norm_eps=text.get("rms_norm_eps", 1e-6),
            act=activation(text.get("hidden_activation") or "gelu_pytorch_tanh"),
            bias=text.get("attention_bias", False),
            tied=config.get("tie_word_embeddings", text.get("tie_word_embeddings", True)),
            logit_cap=text.get("final_logit_softcapping", 30.0),
            window=text.get("sliding_window", 512),
            layer_types=layer_types,
            sources=_sources(layer_types, text.get("num_kv_shared_layers", 15)),
            ropes={kind: _rope(text, kind, head_size) for kind in sorted(set(layer_types))},
            laurel_rank=text.get("laurel_rank", 64),
            streams=text.get("altup_num_inputs", 4),
            active=text.get("altup_active_idx", 0),
            scales_output=text.get("altup_correct_scale", True),
        )


def _layer_types(text: Mapping[str, Any]) -> tuple[str, ...]:
    """``layer_types``, or every fifth layer full."""
    count = text.get("num_hidden_layers", 35)
    kinds = text.get("layer_types") or [SLIDING if (i + 1) % 5 else FULL for i in range(count)]
    if len(kinds) != count or not {*kinds} <= {SLIDING, FULL}:
        raise ValueError(
            f"layer_types must list {SLIDING!r} or {FULL!r} for each of {count} layers, found {list(kinds)}"
        )
    return tuple(kinds)


def _per_layer(text: Mapping[str, Any], key: str, count: int, default: Any) -> tuple[Any, ...]:
    """A value for each of ``count`` layers, where a config may also give one for all."""
    found = text.get(key)
    values = default if found is None else found
    if not isinstance(values, (list, tuple)):
        return (values,) * count
    if len(values) != count:
        raise ValueError(f"{key} must be one value, or one for each of {count} layers, found {len(values)}")
    return tuple(values)


def _sources(layer_types: tuple[str, ...], num_shared: int) -> tuple[int | None, ...]:
    """For each of the last ``num_shared`` layers, the last one of its kind before them."""
    own = len(layer_types) - num_shared
    last = {kind: index for index, kind in enumerate(layer_types[: max(own, 0)])}
    missing = sorted({*layer_types} - {*last})
    if missing:
        raise ValueError(
            f"num_kv_shared_layers must leave a layer of each kind with a cache of its own, found {num_shared}, "
            f"which leaves no {' and no '.join(missing)}"
        )
    return tuple(None if index < own else last[kind] for index, kind in enumerate(layer_types))


def _rope(text: Mapping[str, Any], kind: str, head_size: int) -> Rope:
    """The rope of one kind of layer: its ``rope_parameters``, or the older keys."""
    key, base = THETA[kind]
    base = text.get(key) or base
    parameters = text.get("rope_parameters") or {FULL: text.get("rope_scaling")}
    return Rope.from_parameters(head_size, parameters.get(kind) or {}, base)


def _name(index: int) -> str:
    return f"layers.{index}.self_attn"


def _attention(config: Gemma3nConfig, index: int, backends: BackendChoice) -> Attention | SharedAttention:
    """Attention with a cache, or over that of the layer's source."""
    source = config.sources[index]
    need = AttentionNeed(
        layer=_name(index),
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_size=config.head_size,
        scale=1.0,
        visibility=Visibility(window=config.window if config.layer_types[index] == SLIDING else None),
        shared_cache=source is not None,
    )
    q_norm = WideRMSNorm(config.head_size, config.norm_eps)
    backend = backends.attention
    if source is not None:
        return SharedAttention(
            need, config.width, source=_name(source), backend=backend, bias=config.bias, q_norm=q_norm
        )
    return Attention(
        need,
        config.width,
        backend=backend,
        bias=config.bias,
        q_norm=q_norm,
        k_norm=WideRMSNorm(config.head_size, config.norm_eps),
        v_norm=UnitNorm(config.norm_eps),
    )


class Gemma3nLayer(nn.Module):
    """Attention and feed-forward on the active stream; the others follow."""

    def __init__(self, config: Gemma3nConfig, index: int, backends: BackendChoice) -> None:
        super().__init__()
        self.config = config
        self.kind = config.layer_types[index]
        width, eps = config.width, config.norm_eps
        self.altup = AltUp(width, config.streams, config.active, eps)
        self.input_layernorm = WideRMSNorm(width, eps)
        self.laurel = Laurel(width, config.laurel_rank, eps)
        self.self_attn = _attention(config, index, backends)
        self.post_attention_layernorm = WideRMSNorm(width, eps)
        self.pre_feedforward_layernorm = WideRMSNorm(width, eps)
        inner, sparsity = config.inner[index], config.sparsity[index]
        self.mlp = (
            SparseMLP(width, inner, config.act, sparsity) if sparsity else GatedMLP(width, inner, config.act)
        )
        self.post_feedforward_layernorm = WideRMSNorm(width, eps)
        self.layer_input = PerLayerInput(width, config.layer_width, config.act, eps)

    def fill(self, generator: torch.Generator) -> None:
        """Scores are not scaled by the head's size, so an untrained layer's queries are smaller than others'."""
        if self.self_attn.q_norm is not None:
            for weight in self.self_attn.q_norm.parameters():
                weight.fill_(4.0 * self.config.head_size**-0.5)

    def forward(self, x_ATM: Tensor, input_TI: Tensor, plans: Plans, rotation: Rotation) -> Tensor:
        predicted_ATM = self.altup.predict(x_ATM)
        x_TM = predicted_ATM[self.config.active]
        normed_TM = self.input_layernorm(x_TM)
        read_TM = self.post_attention_layernorm(self.self_attn(normed_TM, plans, rotation))
        x_TM = (x_TM + read_TM + self.laurel(normed_TM)) / 2**0.5
        x_TM = x_TM + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x_TM)))
        out_ATM = self.altup.correct(predicted_ATM, x_TM)
        active_TM = out_ATM[self.config.active]
        if self.config.scales_output:
            active_TM = active_TM * self.altup.correct_output_scale
        # Only the streams behind the first are told.
        out_ATM[1:] += self.layer_input(active_TM, input_TI)
        return out_ATM


class Gemma3n(Decoder):
    """The text part of Gemma 3n."""

    model_types = ("gemma3n", "gemma3n_text")

    def __init__(self, config: Gemma3nConfig, backends: BackendChoice) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = config.vocab_size
        self.max_model_len = config.max_len
        width, count = config.width, len(config.layer_types)
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.layer_inputs = PerLayerInputs(
            config.layer_vocab_size, width, count, config.layer_width, config.norm_eps
        )
        self.streams = Streams(width, config.streams)
        self.layers = nn.ModuleList(Gemma3nLayer(config, index, backends) for index in range(count))
        self.norm = WideRMSNorm(width, config.norm_eps)
        self.lm_head = None if config.tied else nn.Linear(width, config.vocab_size, bias=False)
        self.page_multiple = self.attention_page_multiple()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], backends: BackendChoice | None = None) -> Gemma3n:
        return cls(Gemma3nConfig.read(config), backends or BackendChoice())

    @classmethod
    def map_weights(cls, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Drops prefixes, the parts that see and hear, and the keys and values that released checkpoints hold for
        layers which read another's."""
        sizes = Gemma3nConfig.read(config)
        unused = tuple(
            f"{_name(index)}.{part}"
            for index, source in enumerate(sizes.sources)
            if source is not None
            for part in ("k_proj.", "v_proj.", "k_norm.", "v_norm.")
        )
        mapped = {}
        for name, weight in weights.items():
            text = name.removeprefix("model.").removeprefix("language_model.").removeprefix("model.")
            if not text.startswith((*OTHER_SENSES, *unused)):
                mapped[_placed(text)] = weight
        if sizes.tied:
            mapped.pop("lm_head.weight", None)
        return mapped

    @torch.no_grad()
    def forward(self, batch: ForwardBatch) -> Tensor:
        plans = Plans(batch)
        x_TM = self.embed_tokens(batch.token_ids_T)
        # The factor is rounded to the weights' type first, as in training.
        x_TM = x_TM * torch.tensor(self.config.width**0.5, dtype=x_TM.dtype, device=x_TM.device)
        inputs_TNI = self.layer_inputs(batch.token_ids_T, x_TM)
        rotations = {
            kind: rope.rotation(batch.positions_T, x_TM.dtype) for kind, rope in self.config.ropes.items()
        }
        x_ATM = self.streams.spread(x_TM)
        for layer, kind, input_TI in zip(self.layers, self.config.layer_types, inputs_TNI.unbind(1), strict=True):
            x_ATM = layer(x_ATM, input_TI, plans, rotations[kind])
        x_RM = self.norm(self.streams.merge(x_ATM[:, batch.logit_rows]))
        logits_RV = self.logits(x_RM)
        cap = self.config.logit_cap
        return logits_RV if cap is None else torch.tanh(logits_RV / cap) * cap


def _placed(name: str) -> str:
    """A checkpoint's name, with the part that the weight lies in here."""
    words = name.split(".")
    at = 2 if words[0] == "layers" else 0
    part = PARTS.get(words[at]) if len(words) > at else None
    return ".".join([*words[:at], *([part] if part else []), *words[at:]])
