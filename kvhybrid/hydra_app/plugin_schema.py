"""The parameters of a plug-in as a schema: a dataclass with the types and defaults of its ``__init__``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator
from copy import deepcopy
from dataclasses import MISSING, field, fields, make_dataclass
from functools import cache, partial
from typing import Any, NamedTuple, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from kvhybrid.hydra_app.parts import PARTS, Part
from kvhybrid.plugins import PluginError, path_of

MISSING_VALUE = "???"
"""OmegaConf's marker of a required value."""


class Parameter(NamedTuple):
    """A parameter of a plug-in."""

    name: str
    kind: Any
    """Its type."""
    make_default: Callable[[], Any]


def make_schema(name: str, parameters: Iterable[Parameter]) -> type[Any]:
    """A dataclass of these fields."""
    made = [(name, kind, field(default_factory=make)) for name, kind, make in parameters]
    return make_dataclass(name, made, kw_only=True)


def schema_of(group: str, kind: str) -> type[Any]:
    """The schema of the plug-in that a config chooses with ``group=kind``.

    Its fields are ``kind``, the keys that all plug-ins of the group have, and the plug-in's own parameters.

    Raises:
        PluginError: The plug-in is unknown, cannot be loaded, or has a parameter with the name of another key.
    """
    part = PARTS[group]
    cls: Any = part.registry.find(kind)
    return _schema(part, kind, cls)


@cache
def _schema(part: Part, kind: str, cls: Any) -> type[Any]:
    shared = list(of_dataclass(part.settings, ("kind", "parameters"))) if part.settings else []
    own = [p for given in _parameters(cls) if given.name not in part.given for p in _supported(given)]
    taken = {"kind", *(parameter.name for parameter in shared)} & {parameter.name for parameter in own}
    if taken:
        raise PluginError(
            f"{part.registry.noun} {path_of(cls)} has a parameter {min(taken)!r}, which is a key of every "
            f"{part.registry.noun}; give it another name"
        )
    return make_schema(cls.__name__, [Parameter("kind", str, lambda: kind), *shared, *own])


def _parameters(cls: type[Any]) -> Iterator[Parameter]:
    """The parameters that ``__init__`` accepts by keyword."""
    owner = next(base for base in cls.__mro__ if "__init__" in vars(base))
    if "__dataclass_fields__" in vars(owner):
        yield from of_dataclass(owner)
        return
    try:
        parameters = list(inspect.signature(cls).parameters.values())
        hints = get_type_hints(vars(owner)["__init__"])
    except ValueError:  # a compiled class of ours, which has no additional parameters
        return
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            default = MISSING_VALUE if parameter.default is parameter.empty else parameter.default
            yield Parameter(parameter.name, hints.get(parameter.name, Any), partial(deepcopy, default))


def of_dataclass(cls: type[Any], left_out: Collection[str] = ()) -> Iterator[Parameter]:
    """The parameters of a dataclass's ``__init__``."""
    hints = get_type_hints(cls)
    for known in fields(cls):
        if known.init and known.name not in left_out:
            default = MISSING_VALUE if known.default is MISSING else known.default
            make: Any = partial(deepcopy, default) if known.default_factory is MISSING else known.default_factory
            yield Parameter(known.name, hints[known.name], make)


def _supported(parameter: Parameter) -> Iterator[Parameter]:
    """The parameter in a form for configs: of type Any if OmegaConf does not support its type, and None if YAML
    cannot represent its default."""
    for kind in (parameter.kind, Any):
        found = parameter._replace(kind=kind)
        try:
            OmegaConf.create(OmegaConf.to_yaml(OmegaConf.structured(make_schema("Probe", [found]))))
        except (OmegaConfBaseException, ValueError, YAMLError):
            continue
        yield found
        return
