"""From the schema classes to Hydra, and from a composed config back to settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from hydra.core.config_store import ConfigStore
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kvhybrid.errors import InputError
from kvhybrid.hydra_app.errors import explain, nearest
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
    """``config`` as dicts, lists and values."""
    content: dict[str, Any] = OmegaConf.to_container(config)
    return content


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
