"""Registers the schema with Hydra, and converts a composed config to settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from kvhybrid.errors import InputError, nearest
from kvhybrid.hydra_app.errors import explain
from kvhybrid.hydra_app.parts import PARTS, Part
from kvhybrid.hydra_app.plugin_schema import MISSING_VALUE, Parameter, make_schema, of_dataclass, schema_of
from kvhybrid.hydra_app.plugin_source import register_plugins
from kvhybrid.plugins import path_of
from kvhybrid.sessions.plan_settings import PlanSettings
from kvhybrid.sessions.replay_settings import ReplaySettings
from kvhybrid.sessions.run_settings import RunSettings

Settings = TypeVar("Settings")


def register_schema() -> None:
    """Register the schemas of all verbs in Hydra's config store, and the plug-ins in its search path."""
    register_plugins()
    store = ConfigStore.instance()
    store.store(name="run_schema", node=_open_schema(RunSettings), provider="kvhybrid")
    store.store(name="replay_schema", node=_open_schema(ReplaySettings), provider="kvhybrid")
    store.store(name="plan_schema", node=_open_schema(PlanSettings), provider="kvhybrid")


def _open_schema(settings: type[Any]) -> type[Any]:
    """``settings`` as a schema that accepts any keys where a plug-in defines them."""
    return make_schema(settings.__name__, map(_opened, of_dataclass(settings)))


def _opened(key: Parameter) -> Parameter:
    if key.name == "tracking":
        return key._replace(kind=dict[str, Any])
    return Parameter(key.name, Any, lambda: MISSING_VALUE) if key.name in PARTS else key


def read_config(config: DictConfig, kind: type[Settings]) -> Settings:
    """Convert ``config`` to a ``kind``, and create its plug-ins.

    Resolves all references in ``config`` and fills in the defaults of plug-ins.

    Raises:
        InputError: A value is missing, of the wrong type or out of range, or a plug-in cannot be loaded.
    """
    try:
        _refuse_missing(config)
        OmegaConf.resolve(config)
        _refuse_unknown_keys(config)
        values: dict[str, Any] = {}
        for key in (known.name for known in fields(kind)):  # type: ignore[arg-type]
            if key == "tracking":
                values[key] = {name: _plugin(config, key, f"{key}.{name}") for name in config[key]}
            elif key in PARTS:
                values[key] = _plugin(config, key, key)
            else:
                node = config[key]
                values[key] = OmegaConf.to_object(node) if OmegaConf.is_config(node) else node
        return kind(**values)
    except OmegaConfBaseException as error:
        raise InputError(explain(error)) from error
    except ValueError as error:
        raise InputError(str(error)) from error


def plain(config: DictConfig) -> dict[str, Any]:
    """``config`` as dicts, lists and values."""
    content: dict[str, Any] = OmegaConf.to_container(config)
    return content


def _plugin(config: DictConfig, group: str, key: str) -> Any:
    """The plug-in that ``key`` describes, or the settings of one that is created later."""
    part = PARTS[group]
    kind = _kind(config, part, key)
    typed = OmegaConf.create()
    OmegaConf.update(typed, key, OmegaConf.structured(schema_of(group, kind)))
    OmegaConf.update(typed, key, OmegaConf.to_container(OmegaConf.select(config, key)), merge=True)
    _refuse_missing(typed)
    node = OmegaConf.select(typed, key)
    with open_dict(config):
        OmegaConf.update(config, key, OmegaConf.to_container(node), merge=True)
    chosen = OmegaConf.to_object(node)
    values = {known.name: getattr(chosen, known.name) for known in fields(chosen)}
    if part.settings is None:
        del values["kind"]
        return _made(part.registry.find(kind), key, values)
    shared = {known.name: values.pop(known.name) for known in fields(part.settings) if known.name in values}
    return part.settings(**shared, parameters=values)


def _kind(config: DictConfig, part: Part, key: str) -> str:
    """The plug-in that the config names at ``key``; if optional and missing, the default of the settings."""
    node = OmegaConf.select(config, key)
    default = part.settings().kind if part.settings else None
    kind = node.get("kind", default) if isinstance(node, DictConfig) else None
    if not isinstance(kind, str):
        accepted = ", ".join((*part.registry.names(), "module:Class"))
        found = "nothing" if kind is None else repr(kind)
        raise InputError(
            f"{key}.kind must be the name of a {part.registry.noun}, found {found}; accepted: {accepted}"
        )
    return kind


def _made(cls: type[Any], key: str, values: Mapping[str, Any]) -> Any:
    try:
        return cls(**values)
    except ValueError as error:
        text = " ".join(str(error).split())
        raise InputError(text if text.startswith(key) else f"{key}: {text}") from error
    except Exception as error:
        text = " ".join(str(error).split())
        raise InputError(f"{key}: {path_of(cls)} raises {type(error).__name__}: {text}") from error


def _refuse_missing(config: DictConfig) -> None:
    for key in sorted(OmegaConf.missing_keys(config)):
        raise InputError(f"{key} is missing: give {key}=VALUE")


def _refuse_unknown_keys(node: DictConfig, place: str = "") -> None:
    """``+key=value`` bypasses Hydra's schema, but nothing would read such a key."""
    schema = OmegaConf.get_type(node)
    known = [field.name for field in fields(schema)] if is_dataclass(schema) else None
    for key in node:
        if known is not None and key not in known:
            raise InputError(f"{place}{key}: no such key{nearest(str(key), known, place)}")
        if isinstance(node[key], DictConfig):
            _refuse_unknown_keys(node[key], f"{place}{key}.")
