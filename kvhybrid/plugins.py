"""Plug-ins: every replaceable part is found in the same way, by a registered name or as ``module:Class``.

This module imports nothing of kvhybrid except its error, so specs, managers and models can use it.
``docs/plug-ins.md`` lists the kinds of plug-ins and has an example of each.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from kvhybrid.errors import InputError, described

T = TypeVar("T")
Class = TypeVar("Class", bound=type[Any])

Choice: TypeAlias = str | Callable[..., Any]
"""A plug-in that is created later: a registered name, ``module:Class``, or a callable that creates it, such as a
``functools.partial`` of a class with parameters."""

BUILT_IN = "built in"
REGISTERED = "registered"

log = logging.getLogger(__name__)


class PluginError(InputError):
    """A plug-in that is unknown, cannot be loaded, or has a name that is taken."""


class UnknownPluginError(PluginError):
    """An unregistered name; the message lists the registered ones."""


@dataclass(frozen=True)
class Entry:
    """A registered name, its class as ``module:Class``, and its origin."""

    name: str
    target: str
    origin: str
    """``built in``, ``registered`` (by decorator), or the distribution whose entry point it is."""


class Registry(Generic[T]):
    """The plug-ins of one kind, by name.

    A name is built in, registered with the decorator `register`, or the entry point of another distribution. A
    class is imported on first use. An entry point that cannot be loaded or has a name that is taken is a warning
    in listings, and an error if its name is looked up.
    """

    def __init__(self, noun: str, group: str, base: str, built_in: Mapping[str, str]) -> None:
        """``noun`` is the name of this kind in messages, ``group`` its entry-point group, ``base`` the class that
        all plug-ins derive from. ``base`` and the values of ``built_in`` are ``module:Class``."""
        self.noun = noun
        self.group = group
        self.base = base
        self._entries = {name: Entry(name, target, BUILT_IN) for name, target in built_in.items()}
        self._classes: dict[str, type[T]] = {}
        self._reported: set[Entry] = set()
        self._points: tuple[Entry, ...] | None = None

    def register(self, name: str) -> Callable[[Class], Class]:
        """A decorator that registers a class under ``name``. The same class may be registered again."""

        def add(cls: Class) -> Class:
            target = self._checked(f"{self.noun} {name!r}", cls)
            entry, taken = Entry(name, target, REGISTERED), self._entries.get(name)
            if not name:
                raise PluginError(f"{self.noun} {target} needs a name")
            if taken is not None and taken.target != target:
                raise PluginError(_taken(self.noun, taken, entry))
            self._entries[name], self._classes[name] = entry, cls
            return cls

        return add

    def names(self) -> tuple[str, ...]:
        """All registered names, sorted. Nothing is imported."""
        return tuple(entry.name for entry in self.entries())

    def entries(self) -> tuple[Entry, ...]:
        """All entries, sorted by name. Nothing is imported."""
        found = dict(self._entries)
        for entry in self._plugged_in:
            taken = found.setdefault(entry.name, entry)
            if taken.target == entry.target:
                found[entry.name] = entry
            else:
                self._report(entry, _taken(self.noun, taken, entry))
        return tuple(sorted(found.values(), key=lambda entry: entry.name))

    def __contains__(self, name: object) -> bool:
        return name in self._entries or any(entry.name == name for entry in self._plugged_in)

    def get(self, name: str) -> type[T]:
        """The class registered as ``name``. Imports only registered classes, so ``name`` may come from a data
        file.

        Raises:
            PluginError: The name is unknown, or the class cannot be loaded.
        """
        if name not in self._classes:
            self._classes[name] = self._load(self._entry(name))
        return self._classes[name]

    def find(self, choice: str | type[Any]) -> type[T]:
        """The class that a user chose: by a registered name, as ``module:Class``, or as the class itself.

        Raises:
            PluginError: It is unknown, cannot be loaded, or is not a plug-in of this kind.
        """
        if isinstance(choice, type):
            self._checked(self.noun, choice)
            return choice
        if ":" in choice:
            return self._load(Entry(choice, choice, ""))
        if choice not in self:
            raise self._unknown(choice, "module:Class")
        return self.get(choice)

    def maker(self, choice: Choice, **parameters: Any) -> Callable[..., T]:
        """A callable that creates the plug-in ``choice`` with ``parameters``."""
        make = self.find(choice) if isinstance(choice, str) else choice
        return partial(make, **parameters) if parameters else make

    def load_all(self) -> dict[str, type[T]]:
        """Every class that can be loaded, by name; for the others, a warning is logged once."""
        found: dict[str, type[T]] = {}
        for entry in self.entries():
            try:
                found[entry.name] = self.get(entry.name)
            except PluginError as error:
                self._report(entry, str(error))
        return found

    def name_of(self, cls: type[Any]) -> str:
        """The registered name of ``cls`` or its nearest registered base class.

        Raises:
            PluginError: Neither is registered.
        """
        target = path_of(cls)
        for entry in self._entries.values():
            if entry.target == target:
                return entry.name
        names = {found: name for name, found in self.load_all().items()}
        for base in cls.__mro__:
            if base in names:
                return names[base]
        raise PluginError(f"{self.noun} {target} is not registered; registered: {', '.join(self.names())}")

    @property
    def _plugged_in(self) -> tuple[Entry, ...]:
        """The entry points of other distributions, read once."""
        if self._points is None:
            self._points = tuple(map(_entry_of, entry_points(group=self.group)))
        return self._points

    def _entry(self, name: str) -> Entry:
        if name in self._entries:
            return self._entries[name]
        claims = [entry for entry in self._plugged_in if entry.name == name]
        if not claims:
            raise self._unknown(name)
        if len({entry.target for entry in claims}) > 1:
            raise PluginError(_taken(self.noun, *claims[:2]))
        return claims[0]

    def _unknown(self, name: str, *others: str) -> UnknownPluginError:
        accepted = ", ".join((*self.names(), *others))
        return UnknownPluginError(f"unknown {self.noun} {name!r}; accepted: {accepted or 'nothing'}")

    def _load(self, entry: Entry) -> type[T]:
        described = f"{self.noun} {entry.name!r}"
        if entry.target != entry.name:
            described += f" ({entry.target}, {entry.origin})"
        try:
            found: Any = resolve(entry.target)
        except (Exception, SystemExit) as error:  # a script that exits would pass for a run that was done
            reason = " ".join(str(error).split()) or type(error).__name__
            raise PluginError(f"{described} cannot be loaded: {reason}") from error
        self._checked(described, found)
        cls: type[T] = found
        return cls

    def _checked(self, described: str, found: Any) -> str:
        """The ``module:Class`` of ``found``. Raises PluginError if it is not a class of this kind."""
        if not isinstance(found, type) or not issubclass(found, resolve(self.base)):
            shown = path_of(found) if isinstance(found, type) else f"{found!r}"
            raise PluginError(f"{described} must be a subclass of {self.base}, found {shown}")
        return path_of(found)

    def _report(self, entry: Entry, problem: str) -> None:
        if entry not in self._reported:
            self._reported.add(entry)
            log.warning("%s", problem)


def resolve(target: str) -> Any:
    """Import the object that ``module:name`` refers to."""
    module, _, attribute = target.partition(":")
    found: Any = import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def path_of(cls: type[Any]) -> str:
    """``module:Class``."""
    return f"{cls.__module__}:{cls.__qualname__}"


def failure_of(error: BaseException) -> str | None:
    """One line that names the plug-in whose code has raised ``error`` or its cause; None if no plug-in has.

    A plug-in is a class outside of kvhybrid with a base class in it. The innermost one is named. None also if a
    plug-in has refused its parameters with ValueError, whose message says it all.
    """
    cause: BaseException | None = error
    while cause is not None:
        for frame, number in reversed(list(traceback.walk_tb(cause.__traceback__))):
            owner = frame.f_locals.get("self", frame.f_locals.get("cls"))
            cls = owner if isinstance(owner, type) else type(owner)
            if not _is_ours(frame.f_globals.get("__name__", "")) and _is_plugin(cls):
                if isinstance(cause, ValueError) and frame.f_code.co_name in ("__init__", "__post_init__"):
                    return None
                place = f"{Path(frame.f_code.co_filename).name}, line {number}"
                return f"{path_of(cls)} raises {described(cause)} ({place})"
        cause = cause.__cause__
    return None


def _is_plugin(cls: type[Any]) -> bool:
    return not _is_ours(cls.__module__) and any(_is_ours(base.__module__) for base in cls.__mro__)


def _is_ours(module: str) -> bool:
    return module.startswith("kvhybrid.")


def _entry_of(point: EntryPoint) -> Entry:
    origin = f"{point.dist.name} {point.dist.version}" if point.dist else "entry point"
    return Entry(point.name, f"{point.module}:{point.attr}", origin)


def _taken(noun: str, taken: Entry, entry: Entry) -> str:
    return (
        f"{noun} name {entry.name!r} is taken by {taken.target} ({taken.origin}); "
        f"{entry.target} ({entry.origin}) needs another"
    )
