"""Registries of classes by name, each imported on first use."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any


class UnknownNameError(ValueError):
    """A name that is not registered. The message lists the known names."""


class LazyRegistry:
    """Maps names to ``"module:Class"``, imported on first use.

    Other distributions add classes with `register` or through the entry-point group, whose names are the keys and
    whose values have this form.
    """

    def __init__(self, noun: str, entry_point_group: str, built_in: Mapping[str, str]) -> None:
        self.noun = noun
        self.entry_point_group = entry_point_group
        self._targets: dict[str, str | type[Any]] = dict(built_in)

    def register(self, name: str, target: str | type[Any]) -> None:
        """Register ``target``, a class or ``"module:Class"``. Raises ValueError for a name that is taken."""
        if name in self._targets:
            raise ValueError(f"{self.noun} {name!r} is taken by {self._targets[name]}")
        self._targets[name] = target

    def names(self) -> tuple[str, ...]:
        """All known names, sorted, including those of other distributions."""
        return tuple(sorted({*self._targets, *self.plugged_in()}))

    def get(self, name: str) -> type[Any]:
        """The class called ``name``. Raises UnknownNameError, or ValueError if it cannot be imported."""
        target = self._targets.get(name) or self.plugged_in().get(name)
        if target is None:
            raise UnknownNameError(f"unknown {self.noun} {name!r}; known: {', '.join(self.names())}")
        if isinstance(target, type):
            return target
        module, _, attribute = target.partition(":")
        try:
            found: type[Any] = getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"{self.noun} {name!r}: {target} cannot be imported: {error}") from error
        return found

    def plugged_in(self) -> dict[str, str]:
        """The entries that other distributions add through the entry-point group."""
        return {point.name: point.value for point in entry_points(group=self.entry_point_group)}
