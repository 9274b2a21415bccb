"""From the schema classes to Hydra, and from a composed config back to settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kvhybrid.errors import InputError, nearest
from kvhybrid.hydra_app.errors import explain
from kvhybrid.sessions.run_settings import RunSettings, schema_nodes
from kvhybrid.settings.model import ModelSettings
from kvhybrid.tracking import Tracker
from kvhybrid.workloads import Workload

Settings = TypeVar("Settings")


def register_schema(nodes: Mapping[tuple[str | None, str], type[Any]] | None = None) -> None:
    """Hand a schema to Hydra's config store: that of ``kvhybrid run``, or the ``nodes`` of another verb."""
    store = ConfigStore.instance()
    for (group, name), node in (schema_nodes() if nodes is None else nodes).items():
        store.store(group=group, name=name, node=node, provider="kvhybrid")


def read_settings(config: DictConfig) -> RunSettings:
    """The settings of ``kvhybrid run`` that ``config`` spells, as `read_config` reads them."""
    return read_config(config, RunSettings, {"model": ModelSettings, "workload": Workload})


def read_config(config: DictConfig, kind: type[Settings], parts: Mapping[str, type[Any]]) -> Settings:
    """The ``kind`` that ``config`` spells. Raises `InputError` for a value that is missing or out of range.

    ``parts`` are the open keys, whose class a schema or ``_target_`` names, and the base class of each; so are the
    entries of ``tracking``. ``config`` is left with every reference resolved.
    """
    try:
        for key in sorted(OmegaConf.missing_keys(config)):
            raise InputError(f"{key} is missing: give {key}=VALUE")
        OmegaConf.resolve(config)
        _refuse_unknown_keys(config)
        settings: Any = OmegaConf.to_object(config)
        for key, wanted in parts.items():
            setattr(settings, key, _build(config, key, wanted))
        trackers = [str(name) for name in config.tracking]
        settings.tracking = {name: _build(config, f"tracking.{name}", Tracker) for name in trackers}
    except OmegaConfBaseException as error:
        raise InputError(explain(error)) from error
    except ValueError as error:
        raise InputError(str(error)) from error
    assert isinstance(settings, kind)
    return settings


def plain(config: DictConfig) -> dict[str, Any]:
    """``config`` as plain data with every reference resolved. Raises `InputError` for one that leads nowhere."""
    try:
        content: dict[str, Any] = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise InputError(explain(error)) from error
    return content


def schemas_of(config: DictConfig, place: str = "") -> Iterator[str]:
    """Defaults-list entries for the classes that the parts of ``config`` have from Hydra's store, by package."""
    stored = {OmegaConf.get_type(node.node): path for path, node in _stored(ConfigStore.instance().repo)}
    for key in config:
        part = None if OmegaConf.is_missing(config, key) else config._get_node(key)
        if isinstance(part, DictConfig):
            path = stored.get(OmegaConf.get_type(part))
            if path is not None:
                yield f"{path}@{place}{key}"
            yield from schemas_of(part, f"{place}{key}.")


def _stored(folder: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, ConfigNode]]:
    """Every schema in Hydra's store, with its absolute name."""
    for name, entry in folder.items():
        if isinstance(entry, ConfigNode):
            if is_dataclass(OmegaConf.get_type(entry.node)):
                yield f"{place}/{name.removesuffix('.yaml')}", entry
        else:
            yield from _stored(entry, f"{place}/{name}")


def _build(config: DictConfig, key: str, wanted: type[Any]) -> Any:
    """The object that a node stands for: of its schema class, or what its ``_target_`` makes."""
    node = OmegaConf.select(config, key)
    try:
        built = instantiate(node, _convert_="object")
    except InstantiationException as error:
        reason = error.__cause__ or error
        raise InputError(f"{key}: {' '.join(str(reason).split())}") from error
    if not isinstance(built, wanted):
        raise InputError(
            f"{key} must be a {wanted.__module__}.{wanted.__qualname__}, by a schema in its defaults list or "
            f"by _target_; found {type(built).__qualname__}"
        )
    return built


def _refuse_unknown_keys(node: DictConfig, place: str = "") -> None:
    """Hydra lets ``+key=value`` past the schema; nothing would read such a key."""
    schema = OmegaConf.get_type(node)
    known = [field.name for field in fields(schema)] if is_dataclass(schema) else None
    for key in node:
        if known is not None and key not in known:
            raise InputError(f"{place}{key}: no such key{nearest(str(key), known, place)}")
        if isinstance(node[key], DictConfig):
            _refuse_unknown_keys(node[key], f"{place}{key}.")
