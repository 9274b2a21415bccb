"""A model's layers without the model: what each of them keeps, as a config spells it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, get_type_hints

from kvhybrid.specs import KVCacheSpec, registry


@dataclass(kw_only=True)
class LayerSettings:
    """``count`` layers with the same spec."""

    spec: str
    """A registered name."""
    count: int = 1
    fields: dict[str, Any] = field(default_factory=dict)
    """The fields of the spec, but for its block size."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"cache.layers: count must be at least 1, found {self.count}")


@dataclass(kw_only=True)
class CacheSettings:
    """The layers that the cache serves. Planning makes groups of them, as it does for a model."""

    layers: list[LayerSettings] = field(default_factory=list)

    def layer_specs(self, block_size: int) -> dict[str, KVCacheSpec]:
        """The spec of every layer. Raises ValueError for a spec or field that there is not."""
        if not self.layers:
            raise ValueError("cache.layers must have an entry, such as {spec: full, count: 32}, found none")
        specs: list[KVCacheSpec] = []
        for at, layer in enumerate(self.layers):
            specs += [_spec(f"cache.layers[{at}]", layer, block_size)] * layer.count
        return {f"layer{index}": spec for index, spec in enumerate(specs)}


def _spec(place: str, layer: LayerSettings, block_size: int) -> KVCacheSpec:
    try:
        kind = registry.find(layer.spec)
    except ValueError as error:
        raise ValueError(f"{place}.spec: {error}") from error
    given = {name: _frozen(value) for name, value in layer.fields.items()}
    _check(f"{place}.fields", given, kind)
    try:
        spec = kind(block_size=block_size, **given)
        hash((spec, spec.page_bytes))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}.fields: {error}; accepted: the fields of {kind.__qualname__}") from error
    return spec


def _check(place: str, given: Mapping[str, Any], kind: type[KVCacheSpec]) -> None:
    """Names, and the types of plain numbers and texts; what is nested the spec checks itself."""
    hints = get_type_hints(kind)
    planned = ("block_size", "padded_page_bytes")
    accepted = {field.name: field for field in fields(kind) if field.init and field.name not in planned}
    for name, value in given.items():
        if name not in accepted:
            raise ValueError(f"{place}.{name}: {kind.kind} has no such field; accepted: {_listed(accepted)}")
        if hints[name] in (int, str, bool, float) and type(value) is not hints[name]:
            raise ValueError(f"{place}.{name} must be of type {hints[name].__name__}, found {value!r}")
    needed = [name for name, field in accepted.items() if not _has_default(field) and name not in given]
    if needed:
        raise ValueError(f"{place}: {kind.kind} needs {_listed(needed)}; accepted: {_listed(accepted)}")


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _frozen(value: Any) -> Any:
    """Lists as tuples, so that the spec can be hashed."""
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"
