"""Rules that convert an observation of a model to the specs of its layers.

Observation yields heads, head sizes, windows, states and dtypes. It cannot distinguish a chunk from a window, or a
latent from keys and values, and does not show which part of a stored tensor is never read again. The rules here
derive this from the config and the names of the tensors; `tests/kvhybrid/planning/test_rules.py` checks each of
them on real models.
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
"""Keys of a sparse attention's indexer: one vector per token, in addition to keys and values."""
UNPLANNED = ("compressed_kv", "buffer_kv", "buffer_gate", "overlap_kv", "overlap_gate")
"""Entries that grow by one every few tokens, with a buffer for the tokens in between (DeepSeek-V4)."""
CONV = "conv_states"
"""transformers stores as many inputs of a convolution as its kernel is wide; the oldest one is never read."""
ALL_INPUTS_READ = ("zaya",)
"""Model types that do read it, because they have two successive convolutions."""


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """Options of a cache's layout."""

    block_size: int = 16
    kv_dtype: str | None = None
    """Dtype of keys, values and latents; None: the model's own."""
    state_dtype: str | None = None
    """Dtype of recurrent states; None: that in which the model computes them."""
    tp: int = 1
    """Tensor-parallel ranks. All sizes are those of one rank."""
    all_stored: bool = False
    """Whether to count every input that transformers stores for a convolution, including the one that is never
    read.
    """


def layer_specs(seen: Observation, options: CacheOptions) -> dict[str, KVCacheSpec]:
    """The specs of a model's layers, in the order of the layers.

    ``layer3`` is layer 3; additional caches of it are ``layer3.state`` and ``layer3.indexer``. Raises
    `PlanningError` for a layer that no spec describes, and for sizes that cannot be divided over ``options.tp``
    ranks.
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
    """transformers stores a chunk like a window of the same size; only the mask differs."""
    types = config.get("layer_types")
    if types and layer.index < len(types):
        return bool(types[layer.index] == "chunked_attention")
    return not config.get("sliding_window") and config.get("attention_chunk_size") == layer.window


def _latent(kept: KeptTensor, options: CacheOptions, size: int | None = None) -> KVCacheSpec:
    """One vector per token, of which every rank holds a full copy."""
    return MLAAttentionSpec(
        block_size=options.block_size,
        num_kv_heads=kept.shape[0] if len(kept.shape) == 3 else 1,
        head_size=size or kept.shape[-1],
        dtype=options.kv_dtype or kept.dtype,
    )


def _heads_per_rank(heads: int, tp: int, index: int) -> int:
    """Key-value heads of one rank: an equal share, or a copy of one if there are fewer heads than ranks."""
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
    """The shape that has to be kept; nothing for a convolution that only sees the current token."""
    *channels, width = tensor.shape
    if tensor.name.startswith(CONV) and not all_read:
        width -= 1
    if width:
        yield (*channels, width)


def _shape_per_rank(
    config: Mapping[str, Any], tensor: KeptTensor, shape: tuple[int, ...], tp: int, index: int
) -> tuple[int, ...]:
    """The first dimension, channels or heads, is split over the ranks. The convolution of Mamba-2 also covers the
    inputs of its groups, and every rank needs at least one group."""
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
