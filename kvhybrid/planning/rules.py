"""Rules: from what a model was seen to keep to the specs of its layers.

Observation yields heads, head sizes, windows, states and dtypes. It cannot tell a chunk from a window, a latent
from keys and values, or which part of a stored tensor is never read again. The rules here can, from the config and
the names of the tensors; `tests/kvhybrid/planning/test_rules.py` checks each on real models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvhybrid.planning.error import PlanningError
from kvhybrid.specs import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

if TYPE_CHECKING:
    from kvhybrid.planning.observed import KeptTensor, Observation, ObservedLayer

KEYS, VALUES = "keys", "values"
INDEXER_KEYS = ("indexer_keys", "idx_keys")
"""Keys of a sparse attention's indexer: a vector for every token, in addition to keys and values."""
UNPLANNED = ("compressed_kv", "buffer_kv", "buffer_gate", "overlap_kv", "overlap_gate")
"""Entries that grow by one for every few tokens, with a buffer for the tokens between (DeepSeek-V4)."""
CONV = "conv_states"
"""transformers stores as many inputs of a convolution as its kernel is wide; the oldest one is never read."""
ALL_INPUTS_READ = ("zaya",)
"""Model types that do read it: theirs are two convolutions in a row."""


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """How the cache of a model is laid out, where that is a choice."""

    block_size: int = 16
    kv_dtype: str | None = None
    """Of keys, values and latents; the model's own where not given."""
    state_dtype: str | None = None
    """Of recurrent states; where not given, what the model computes them in."""
    tp: int = 1
    """Tensor-parallel ranks. All sizes are those of one rank."""
    all_stored: bool = False
    """Count every input that transformers stores for a convolution, also the one that is never read."""


def layer_specs(seen: Observation, options: CacheOptions) -> dict[str, KVCacheSpec]:
    """The spec of everything that the layers of a model keep, in the order of its layers.

    ``layer3`` is layer 3; what else it keeps is ``layer3.state`` and ``layer3.indexer``. Raises `PlanningError`
    for a layer that keeps what no spec describes, and for sizes that ``options.tp`` ranks cannot share.
    """
    specs: dict[str, KVCacheSpec] = {}
    for layer in seen.layers:
        parts = {tensor.name: tensor for tensor in layer.tensors}
        unplanned = sorted(name for name in parts if name.startswith(UNPLANNED))
        if unplanned:
            raise PlanningError(
                f"model_type {seen.model_type!r}: layer {layer.index} keeps {', '.join(unplanned)}: entries for "
                "groups of tokens, which no spec here describes; accepted: keys and values, latents, states"
            )
        states = tuple(tensor for name, tensor in parts.items() if name not in (KEYS, VALUES, *INDEXER_KEYS))
        name = f"layer{layer.index}"
        if KEYS in parts:
            specs[name] = _attention(seen.config, layer, parts[KEYS], parts.get(VALUES), options)
        for indexer in INDEXER_KEYS:
            if indexer in parts:
                specs[f"{name}.indexer"] = _latent(parts[indexer], options)
        if states:
            specs[f"{name}.state" if KEYS in parts else name] = _state(seen.config, layer, states, options)
    return specs


def _attention(
    config: Mapping[str, Any],
    layer: ObservedLayer,
    keys: KeptTensor,
    values: KeptTensor | None,
    options: CacheOptions,
) -> KVCacheSpec:
    heads, _, key_size = keys.shape
    value_size = values.shape[-1] if values else 0
    latent = (config.get("kv_lora_rank"), config.get("qk_rope_head_dim"))
    if heads == 1 and (key_size, value_size) == latent and layer.window is None:
        return _latent(keys, options, key_size + value_size)
    shape: dict[str, Any] = {
        "block_size": options.block_size,
        "num_kv_heads": _heads_per_rank(heads, options.tp, layer.index),
        "head_size": key_size,
        "head_size_v": None if value_size == key_size else value_size,
        "dtype": options.kv_dtype or keys.dtype,
    }
    if layer.window is None:
        return FullAttentionSpec(**shape)
    if _is_chunked(config, layer):
        return ChunkedLocalAttentionSpec(chunk=layer.window, **shape)
    return SlidingWindowSpec(window=layer.window, **shape)


def _is_chunked(config: Mapping[str, Any], layer: ObservedLayer) -> bool:
    """transformers keeps a chunk as it keeps a window of the same size; only the mask differs."""
    types = config.get("layer_types")
    if types and layer.index < len(types):
        return bool(types[layer.index] == "chunked_attention")
    return not config.get("sliding_window") and config.get("attention_chunk_size") == layer.window


def _latent(kept: KeptTensor, options: CacheOptions, size: int | None = None) -> KVCacheSpec:
    """One vector for every token, which all ranks hold in full."""
    return MLAAttentionSpec(
        block_size=options.block_size,
        num_kv_heads=kept.shape[0] if len(kept.shape) == 3 else 1,
        head_size=size or kept.shape[-1],
        dtype=options.kv_dtype or kept.dtype,
    )


def _heads_per_rank(heads: int, tp: int, index: int) -> int:
    """Key-value heads of one rank: an equal share, or a copy of one where there are fewer heads than ranks."""
    if heads % tp and tp % heads:
        raise PlanningError(
            f"tp={tp}: layer {index} has {heads} key-value heads; accepted: a divisor or a multiple of {heads}"
        )
    return max(1, heads // tp)


def _state(
    config: Mapping[str, Any], layer: ObservedLayer, tensors: tuple[KeptTensor, ...], options: CacheOptions
) -> KVCacheSpec:
    all_read = options.all_stored or config.get("model_type") in ALL_INPUTS_READ
    kept = [(tensor, shape) for tensor in tensors for shape in _needed(tensor, all_read)]
    return MambaSpec(
        block_size=options.block_size,
        names=tuple(tensor.name for tensor, _ in kept),
        shapes=tuple(_shape_per_rank(config, tensor, shape, options.tp, layer.index) for tensor, shape in kept),
        dtypes=tuple(options.state_dtype or tensor.dtype for tensor, _ in kept),
    )


def _needed(tensor: KeptTensor, all_read: bool) -> Iterator[tuple[int, ...]]:
    """The shape that has to be kept: nothing of a convolution that sees the current token alone."""
    *channels, width = tensor.shape
    if tensor.name.startswith(CONV) and not all_read:
        width -= 1
    if width:
        yield (*channels, width)


def _shape_per_rank(
    config: Mapping[str, Any], tensor: KeptTensor, shape: tuple[int, ...], tp: int, index: int
) -> tuple[int, ...]:
    """Channels or heads, the first dimension, are split. The convolution of Mamba-2 also covers the inputs of its
    groups, and every rank needs at least one group."""
    channels, *rest = shape
    groups = config.get("mamba_n_groups") or config.get("n_groups") or config.get("mamba_ngroups") or 0
    size = config.get("mamba_d_state") or config.get("ssm_state_size") or config.get("state_size") or 0
    grouped = 2 * groups * size
    inner = channels - grouped
    if tensor.name.startswith(CONV) and 0 < grouped < channels and inner % tp == 0:
        return (inner // tp + 2 * _heads_per_rank(groups, tp, index) * size, *rest)
    if channels % tp:
        raise PlanningError(
            f"tp={tp}: {tensor.name} of layer {index} has {channels} channels or heads; accepted: a divisor"
        )
    return (channels // tp, *rest)
