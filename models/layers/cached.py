"""Layers that have a cache or read the cache of another layer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from kvhybrid.models.backends.base import Backend
from kvhybrid.models.base import LayerCache
from kvhybrid.specs import KVCacheSpec


class CachedLayer(nn.Module):
    """A layer with a name in the cache layout, a spec, a backend and, once bound, its views of the byte pool."""

    name: str
    backend: Backend
    cache: LayerCache

    def spec(self, block_size: int, dtype: torch.dtype) -> KVCacheSpec:
        """The layer's spec, for blocks of ``block_size`` tokens and elements of ``dtype``."""
        raise NotImplementedError


class SharingLayer(nn.Module):
    """A layer without its own cache, and so without a spec: it reads the cache of the layer called ``source``."""

    source: str
    backend: Backend
    cache: LayerCache


def cached_layers(model: nn.Module) -> dict[str, CachedLayer]:
    """The layers of ``model`` that have a cache, by name, in the order of the model."""
    return {layer.name: layer for layer in model.modules() if isinstance(layer, CachedLayer)}


def bind_cache(model: nn.Module, caches: Mapping[str, LayerCache]) -> None:
    """Give every layer its views of the pool, and a sharing layer those of its source.

    Raises ValueError if views are missing or a backend refuses them.
    """
    layers = cached_layers(model)
    readers = [layer for layer in model.modules() if isinstance(layer, SharingLayer)]
    missing = [name for name in (*layers, *(reader.source for reader in readers)) if name not in caches]
    if missing:
        raise ValueError(f"no cache for layers: {', '.join(missing)}")
    for name, layer in layers.items():
        layer.backend.check_cache(name, caches[name])
        layer.cache = caches[name]
    for reader in readers:
        reader.backend.check_cache(reader.source, caches[reader.source])
        reader.cache = caches[reader.source]


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a torch dtype in specs, e.g. ``bfloat16``."""
    return str(dtype).removeprefix("torch.")
