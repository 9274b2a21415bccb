"""The specs to check, given as ``module:Spec``, with random values for fields without a default."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib import import_module
from random import Random
from typing import Any

from kvhybrid.errors import InputError
from kvhybrid.plugins import PluginError
from kvhybrid.specs import KVCacheSpec, registry

BLOCK_SIZES = (1, 2, 2, 3, 4, 4, 4, 8)
LARGEST = 12
"""Upper bound of other random fields, so that live sets span only a few blocks."""
DRAWS = 300
"""Attempts to find values that the class accepts."""
MANY = 24
"""Number of specs drawn from a class."""


@dataclass(frozen=True)
class Subject:
    """The specs to check."""

    target: str
    specs: tuple[KVCacheSpec, ...]

    @property
    def name(self) -> str:
        """The registered name of the first spec, or its ``kind`` if it is not registered."""
        try:
            return registry.name_of(type(self.specs[0]))
        except PluginError:
            return self.specs[0].kind or type(self.specs[0]).__name__


def load_subject(target: str, rng: Random) -> Subject:
    """The specs that ``module:name`` refers to: a spec class, a spec, or a function that returns a list of specs.

    Raises:
        InputError: It cannot be imported, is none of these, or no random values were accepted by the class.
    """
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise InputError(f"found {target!r}; accepted: module:Spec, module:spec or module:function")
    try:
        found: Any = import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # a script that exits would pass for a spec that does
        raise InputError(f"{target} cannot be imported: {_one_line(error)}") from error
    if isinstance(found, type) and issubclass(found, KVCacheSpec):
        return Subject(target, tuple(_draw_many(target, found, rng)))
    if not isinstance(found, (type, KVCacheSpec)) and callable(found):
        try:
            found = found()
        except Exception as error:
            raise InputError(f"{target}() raises {_one_line(error)}") from error
        if isinstance(found, (list, tuple)) and found and all(isinstance(spec, KVCacheSpec) for spec in found):
            return Subject(target, tuple(found))
        raise InputError(f"{target}() returns {_shown(found)}; accepted: a list of specs")
    if isinstance(found, KVCacheSpec):
        return Subject(target, (found,))
    raise InputError(
        f"{target} is {_shown(found)}; accepted: a spec class, a spec, or a function that returns specs"
    )


def spec_as_group(spec: KVCacheSpec, name: str) -> dict[str, Any]:
    """``spec`` as a group of a scenario."""
    group: dict[str, Any] = {"spec": name}
    if name in ("mamba", "private_state"):
        group = {"spec": "mamba", "mode": "align" if name == "mamba" else "none"}
    for field in fields(spec):
        value = getattr(spec, field.name)
        if field.init and (field.name == "block_size" or field.default is MISSING or value != field.default):
            group[field.name] = _plain(value)
    return group


def spec_text(spec: KVCacheSpec) -> str:
    """``spec`` as text, with the fields that differ from their defaults."""
    values = (f"{f.name}={getattr(spec, f.name)!r}" for f in fields(spec) if getattr(spec, f.name) != f.default)
    return f"{type(spec).__name__}({', '.join(values)})"


def size_of(spec: KVCacheSpec) -> int:
    """The sum of the integer fields: an estimate of how far the live set reaches."""
    values = (getattr(spec, field.name) for field in fields(spec) if field.name != "padded_page_bytes")
    return sum(value for value in values if type(value) is int and value > 0)


def _draw_many(target: str, spec: type[KVCacheSpec], rng: Random) -> Iterator[KVCacheSpec]:
    if not is_dataclass(spec):
        raise InputError(f"{target} is not a dataclass; accepted: a frozen dataclass")
    needed = [f for f in fields(spec) if f.init and f.default is MISSING and f.default_factory is MISSING]
    for field in needed:
        if field.type not in (int, "int"):
            raise InputError(
                f"{target}: field {field.name!r} of type {field.type} has no default; accepted: int, "
                "or name a spec or a function that returns specs instead of the class"
            )
    for _ in range(1 if not needed else MANY):
        yield _draw(target, spec, [field.name for field in needed], rng)


def _draw(target: str, spec: type[KVCacheSpec], names: list[str], rng: Random) -> KVCacheSpec:
    refusal = ""
    for _ in range(DRAWS):
        values: dict[str, Any] = {
            name: rng.choice(BLOCK_SIZES) if name == "block_size" else rng.randint(1, LARGEST) for name in names
        }
        try:
            return spec(**values)
        except ValueError as error:
            refusal = _one_line(error)
        except Exception as error:
            drawn = ", ".join(f"{name}={value}" for name, value in values.items())
            raise InputError(f"{target}({drawn}) raises {_one_line(error)}") from error
    raise InputError(
        f"{target} refused {DRAWS} draws of {', '.join(names)} from 1 to {LARGEST}, the last with {refusal!r}; "
        "name a function that returns specs instead"
    )


def _plain(value: Any) -> Any:
    return [_plain(part) for part in value] if isinstance(value, (tuple, list)) else value


def _shown(found: object) -> str:
    return f"the class {found.__qualname__}" if isinstance(found, type) else f"of type {type(found).__qualname__}"


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
