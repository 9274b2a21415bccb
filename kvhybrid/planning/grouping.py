"""Grouping: which layers share a block table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from kvhybrid.cache.config import KVCacheGroup
from kvhybrid.planning.pages import is_uniform
from kvhybrid.specs import KVCacheSpec


def group_layers(
    layer_specs: Mapping[str, KVCacheSpec], draft_layers: Collection[str] = ()
) -> tuple[KVCacheGroup, ...]:
    """Group layers whose pages already have one size, in the order of their first layers.

    Layers of equal spec form a bucket. Buckets are divided into groups of about equal size, because layer i of
    each group is placed in tensor i of the pool and a shorter group leaves its last tensors unused. Layers of a
    bucket are assigned to its groups round-robin, so these differ by at most one layer. A group is named after its
    spec's kind, with an index if there are several of a kind.

    Layers of one uniform type (`is_uniform`) form one group, with the spec of a layer with the largest page.
    """
    return _named(_uniform(layer_specs) or _split(layer_specs), draft_layers)


def kind_groups(
    layer_specs: Mapping[str, KVCacheSpec], draft_layers: Collection[str] = ()
) -> tuple[KVCacheGroup, ...]:
    """As `group_layers`, with one group for all layers of equal spec, whatever their number."""
    return _named(_uniform(layer_specs) or _split(layer_specs, size=len(layer_specs)), draft_layers)


Parts: TypeAlias = list[tuple[KVCacheSpec, tuple[str, ...]]]


def _uniform(layer_specs: Mapping[str, KVCacheSpec]) -> Parts:
    """All layers in one group if they are of one uniform type, else nothing."""
    if not is_uniform(layer_specs):
        return []
    return [(max(layer_specs.values(), key=lambda spec: spec.page_bytes), tuple(layer_specs))]


def _named(parts: Parts, draft_layers: Collection[str]) -> tuple[KVCacheGroup, ...]:
    total = Counter(_kind(spec) for spec, _ in parts)
    seen: Counter[str] = Counter()
    groups = []
    for spec, layers in parts:
        name = kind = _kind(spec)
        if total[kind] > 1:
            name = f"{kind}.{seen[kind]}"
            seen[kind] += 1
        groups.append(KVCacheGroup(name, spec, layers, draft=any(layer in draft_layers for layer in layers)))
    return tuple(groups)


def group_size(bucket_sizes: Sequence[int]) -> int:
    """Layers per group: the smallest bucket size, or the largest if it is less than 1.5 times the smallest.

    In the second case, the padding costs less than a second group.
    """
    smallest, largest = min(bucket_sizes), max(bucket_sizes)
    return largest if largest < 1.5 * smallest else smallest


def _split(layer_specs: Mapping[str, KVCacheSpec], size: int | None = None) -> Parts:
    """Layers of equal spec in groups of at most ``size``, by default `group_size`."""
    buckets: dict[KVCacheSpec, list[str]] = {}
    for layer, spec in layer_specs.items():
        buckets.setdefault(spec, []).append(layer)
    size = size or group_size([len(layers) for layers in buckets.values()])
    parts: Parts = []
    for spec, layers in buckets.items():
        stride = -(-len(layers) // size)
        parts.extend((spec, tuple(layers[start::stride])) for start in range(stride))
    return parts


def _kind(spec: KVCacheSpec) -> str:
    return spec.kind or type(spec).__name__
