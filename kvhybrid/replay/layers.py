"""The schema for a cache's layers without a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, get_args, get_type_hints

from kvhybrid.planning.rules import CacheOptions, layer_specs
from kvhybrid.settings.model_config import read_model_config
from kvhybrid.settings.values import MOST, at_least
from kvhybrid.specs import KVCacheSpec, registry

MOST_LAYERS = 1 << 16
MOST_PAGE_BYTES = 1 << 40
SIZES = ("num_kv_heads", "head_size", "shapes")
"""Fields that decide about the bytes of a page. Their defaults are for tests of the cache manager."""
PLAIN = (int, str, bool, float, type(None))


@dataclass(kw_only=True)
class LayerSettings:
    """``count`` layers with equal specs."""

    spec: str
    """A registered name."""
    count: int = 1
    fields: dict[str, Any] = field(default_factory=dict)
    """The fields of the spec, except its block size."""

    def __post_init__(self) -> None:
        at_least("cache.layers: count", self.count, 1, MOST_LAYERS)


@dataclass(kw_only=True)
class CacheSettings:
    """The layers that the cache serves. Planning groups them as it does for a model."""

    layers: list[LayerSettings] = field(default_factory=list)
    path: str | None = None
    """In place of ``layers``: a ``config.json``, its folder, or the name of a preset of ``kvhybrid plan``."""

    def layer_specs(self, block_size: int, *, in_bytes: bool = False) -> dict[str, KVCacheSpec]:
        """The spec of every layer. ``in_bytes`` is whether the pool is given in bytes.

        Raises:
            ValueError: A spec, a field or the model is unknown, or an entry lacks the sizes of its heads although
                they matter: for a pool in bytes, and for layers whose pages differ.
        """
        if self.path is not None:
            return self._observed(self.path, block_size)
        if not self.layers:
            raise ValueError(
                "cache.layers must have an entry, such as {spec: full, count: 32}, or cache.path must name a "
                "config.json; found none"
            )
        specs: list[KVCacheSpec] = []
        for at, layer in enumerate(self.layers):
            specs += [_spec(f"cache.layers[{at}]", layer, block_size)] * layer.count
        if in_bytes or len({spec.page_bytes for spec in specs}) > 1:
            self._require_sizes("a pool in bytes" if in_bytes else "layers whose pages differ")
        return {f"layer{index}": spec for index, spec in enumerate(specs)}

    def _require_sizes(self, purpose: str) -> None:
        for at, layer in enumerate(self.layers):
            known = {field.name for field in fields(registry.find(layer.spec)) if field.init}
            lacking = [name for name in SIZES if name in known and name not in layer.fields]
            if lacking:
                raise ValueError(
                    f"cache.layers[{at}].fields: {_listed(lacking)} must be given for {purpose}; "
                    f"the defaults have size 1"
                )

    def _observed(self, path: str, block_size: int) -> dict[str, KVCacheSpec]:
        if self.layers:
            raise ValueError("give one of cache.layers and cache.path, found both")
        config = read_model_config("cache.path", path)
        from kvhybrid.planning.observed import observe  # imports torch and transformers

        return layer_specs(observe(config), CacheOptions(block_size=block_size))


def _spec(place: str, layer: LayerSettings, block_size: int) -> KVCacheSpec:
    try:
        kind = registry.find(layer.spec)
    except ValueError as error:
        raise ValueError(f"{place}.spec: {error}") from error
    given = {name: _frozen(value) for name, value in layer.fields.items()}
    _check(f"{place}.fields", given, kind)
    try:
        spec = kind(block_size=block_size, **given)
        hash(spec)
        at_least("bytes of a page", spec.page_bytes, 0, MOST_PAGE_BYTES)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}.fields: {error}; accepted: the fields of {kind.__qualname__}") from error
    return spec


def _check(place: str, given: Mapping[str, Any], kind: type[KVCacheSpec]) -> None:
    """Check names, and the types of scalar fields; nested values are checked by the spec."""
    hints = get_type_hints(kind)
    planned = ("block_size", "padded_page_bytes")
    accepted = {field.name: field for field in fields(kind) if field.init and field.name not in planned}
    for name, value in given.items():
        if name not in accepted:
            raise ValueError(f"{place}.{name}: {kind.kind} has no such field; accepted: {_listed(accepted)}")
        types = get_args(hints[name]) or (hints[name],)
        if all(accepted_type in PLAIN for accepted_type in types) and type(value) not in types:
            names = " or ".join("null" if t is type(None) else t.__name__ for t in types)
            raise ValueError(f"{place}.{name} must be of type {names}, found {value!r}")
        if type(value) in (int, float) and not abs(value) <= MOST:
            raise ValueError(f"{place}.{name} must be at most {MOST:,}, found {value}")
    needed = [name for name, field in accepted.items() if not _has_default(field) and name not in given]
    if needed:
        raise ValueError(f"{place}: {kind.kind} needs {_listed(needed)}; accepted: {_listed(accepted)}")


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _frozen(value: Any) -> Any:
    """Lists as tuples, so that the spec is hashable."""
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"
