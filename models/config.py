"""Typed reading of a Hugging Face ``config.json``: a dataclass whose fields are keys, validated when read.

::

    @dataclass(frozen=True, kw_only=True)
    class Sizes:
        hidden_size: int = count(4096)
        head_dim: int | None = optional(count(64))

    sizes = read_keys(Sizes, config)

A field reads the key of the same name unless ``key`` is given. Its default applies if the config lacks the key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from math import isfinite
from typing import Any, TypeVar

from kvhybrid.models.layers.activation import ACTIVATIONS

T = TypeVar("T")

MOST = 2**31 - 1
"""The largest integer accepted in a config by default."""
SHOWN = 60
"""Maximum length of a refused value in a message, in characters."""

KEY = "kvhybrid.key"
"""Key of a field's metadata for its `Key`, or for the class of a `part`."""


@dataclass(frozen=True)
class Key:
    """How one key is read and validated."""

    accepted: str
    """The accepted values for messages, e.g. "a number above 0"."""
    read: Callable[[Any], Any]
    """Converts a config value to a field value. Raises ValueError, TypeError or OverflowError to refuse it."""
    default: Any
    name: str | None = None
    """The key's name in the config; by default that of the field."""
    nullable: bool = False
    """Whether null is accepted; it is read as None."""

    def of(self, config: Mapping[str, Any], name: str, where: str) -> Any:
        name = self.name or name
        if name not in config:
            if self.default is MISSING:
                raise ValueError(f"{where}{name} is missing; accepted: {self.accepted}")
            return self.default
        found = config[name]
        if found is None and self.nullable:
            return None
        try:
            return self.read(found)
        except (ValueError, TypeError, OverflowError):
            raise ValueError(f"{where}{name} must be {self.accepted}, found {shown(found)}") from None


def shown(value: Any) -> str:
    """A value as JSON, truncated if it is long."""
    text = {"None": "null", "True": "true", "False": "false"}.get(repr(value), repr(value))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def read_keys(kind: type[T], config: Mapping[str, Any], where: str = "", **given: Any) -> T:
    """Build a ``kind`` from the keys of ``config``; fields in ``given`` are not read.

    Raises ValueError; the message has ``where``, the key's name, what was found and what is accepted.
    """
    values = dict(given)
    for each in fields(kind):  # type: ignore[arg-type]
        if each.name in given or KEY not in each.metadata:
            continue
        key = each.metadata[KEY]
        values[each.name] = (
            key.of(config, each.name, where) if isinstance(key, Key) else read_keys(key, config, where)
        )
    return kind(**values)


def section(config: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """A nested object of the config; None if missing or null. Raises ValueError for any other value."""
    found = config.get(name)
    if found is not None and not isinstance(found, Mapping):
        raise ValueError(f"{name} must be an object, found {shown(found)}")
    return found


# ---- kinds of keys. They return dataclass fields, typed Any so that type checkers accept them as defaults.


def value(accepted: str, read: Callable[[Any], Any], default: Any = MISSING, *, key: str | None = None) -> Any:
    """A value converted by ``read``; see `Key`."""
    return field(default=default, metadata={KEY: Key(accepted, read, default, key)})


def count(default: Any = MISSING, *, least: int = 1, most: int = MOST, key: str | None = None) -> Any:
    """An integer from ``least`` to ``most``."""

    def read(found: Any) -> int:
        if isinstance(found, bool) or not isinstance(found, int) or not least <= found <= most:
            raise ValueError
        return found

    return value(f"an integer from {least} to {most}", read, default, key=key)


def number(default: Any = MISSING, *, zero: bool = False, key: str | None = None) -> Any:
    """A finite number above 0, or from 0 up if ``zero``."""

    def read(found: Any) -> float:
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            raise TypeError
        if not isfinite(found) or found < 0 or (found == 0 and not zero):
            raise ValueError
        return found

    return value("a finite number from 0 up" if zero else "a finite number above 0", read, default, key=key)


def flag(default: bool = False, *, key: str | None = None) -> Any:
    """True or false; null counts as false."""

    def read(found: Any) -> bool:
        if found is not None and not isinstance(found, bool):
            raise TypeError
        return bool(found)

    return value("true or false", read, default, key=key)


def text(default: Any = MISSING, *, key: str | None = None) -> Any:
    """A string."""

    def read(found: Any) -> str:
        if not isinstance(found, str):
            raise TypeError
        return found

    return value("a string", read, default, key=key)


def mapping(*, key: str | None = None) -> Any:
    """An object, or null; the field holds a dict or None."""

    def read(found: Any) -> dict[str, Any]:
        if not isinstance(found, Mapping):
            raise TypeError
        return dict(found)

    return optional(value("an object", read, None, key=key))


def activation(default: str, *, key: str | None = None) -> Any:
    """The name of an activation function, or null for the default; the field holds the function."""

    def read(found: Any) -> Any:
        if found is not None and (not isinstance(found, str) or found not in ACTIVATIONS):
            raise ValueError
        return ACTIVATIONS[default if found is None else found]

    return value(f"one of {', '.join(ACTIVATIONS)}", read, ACTIVATIONS[default], key=key)


def listed(one: Any, *, key: str | None = None) -> Any:
    """A list whose entries are read as ``one``, or null; the field holds a tuple or None."""
    entry: Key = one.metadata[KEY]

    def read(found: Any) -> tuple[Any, ...]:
        if not isinstance(found, (list, tuple)):
            raise TypeError
        return tuple(map(entry.read, found))

    return optional(value(f"a list, each entry {entry.accepted}", read, None, key=key))


def one_or_listed(one: Any) -> Any:
    """A value read as ``one``, or a list of such values; the field holds a value or a tuple."""
    key: Key = one.metadata[KEY]

    def read(found: Any) -> Any:
        return tuple(map(key.read, found)) if isinstance(found, (list, tuple)) else key.read(found)

    return value(f"{key.accepted}, or a list of such", read, key.default, key=key.name)


def optional(one: Any) -> Any:
    """Like ``one``, but null is accepted too and is read as None."""
    key: Key = one.metadata[KEY]
    changed = replace(key, accepted=f"{key.accepted}, or null", nullable=True)
    return field(default=key.default, metadata={KEY: changed})


def optional_or(word: str, one: Any) -> Any:
    """Like ``one``, but ``word`` is accepted too; it is read as None, which is also the default."""
    key: Key = one.metadata[KEY]

    def read(found: Any) -> Any:
        return None if found == word else key.read(found)

    return value(f"{key.accepted}, or {word!r}", read, None, key=key.name)


def part(kind: type[Any]) -> Any:
    """Several keys of the same config level, read into one object of ``kind``."""
    return field(metadata={KEY: kind})
