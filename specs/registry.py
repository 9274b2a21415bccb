"""The spec registry: every kind of cache by name, built in or from another distribution."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from kvhybrid.specs.base import KVCacheSpec

ENTRY_POINT_GROUP = "kvhybrid.specs"
GENERIC_MANAGER = "kvhybrid.managers.base:SingleTypeKVCacheManager"


class SpecRegistryError(ValueError):
    """A spec name that is unknown, taken, or cannot be loaded."""


@dataclass(frozen=True)
class SpecEntry:
    """One registered kind: its spec class, the path of its manager class, and where it came from."""

    name: str
    spec: type[KVCacheSpec]
    manager: str | type[Any]
    origin: str

    def manager_class(self) -> type[Any]:
        """The single-type manager; imported only now, since this floor knows no managers."""
        if isinstance(self.manager, type):
            return self.manager
        module, _, name = self.manager.partition(":")
        try:
            found: type[Any] = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise SpecRegistryError(
                f"spec {self.name!r}: its manager {self.manager!r} cannot be imported: {error}"
            ) from error
        return found

    @property
    def manager_name(self) -> str:
        return self.manager.__qualname__ if isinstance(self.manager, type) else self.manager.partition(":")[2]


class SpecRegistry:
    """Names to specs. Other distributions add theirs by `register` or by the entry-point group
    ``kvhybrid.specs``, whose values are spec classes; these are loaded when a name is first looked up."""

    def __init__(self, entry_point_group: str | None = None) -> None:
        self._entries: dict[str, SpecEntry] = {}
        self._group = entry_point_group

    def register(
        self,
        spec: type[KVCacheSpec],
        *,
        manager: str | type[Any] = GENERIC_MANAGER,
        name: str | None = None,
        origin: str = "registered",
    ) -> type[KVCacheSpec]:
        """Add ``spec`` under ``name`` (its ``kind`` where not given) and return it, so that it can decorate.

        ``manager`` is a class or ``"module:Class"``; without one the generic live-set manager serves.
        """
        if not (isinstance(spec, type) and issubclass(spec, KVCacheSpec)):
            raise SpecRegistryError(f"a spec must be a subclass of KVCacheSpec, found {spec!r}")
        name = name or spec.kind
        if not name:
            raise SpecRegistryError(f"spec {spec.__qualname__} has no name: set its class variable `kind`")
        taken = self._entries.get(name)
        if taken is not None:
            raise SpecRegistryError(
                f"spec name {name!r} is taken by {taken.spec.__module__}.{taken.spec.__qualname__} "
                f"({taken.origin}); {spec.__module__}.{spec.__qualname__} needs another"
            )
        self._entries[name] = SpecEntry(name, spec, manager, origin)
        return spec

    def get(self, name: str) -> SpecEntry:
        """The entry called ``name``."""
        self._load_entry_points()
        try:
            return self._entries[name]
        except KeyError:
            known = ", ".join(sorted(self._entries))
            raise SpecRegistryError(f"unknown spec {name!r}; registered: {known}") from None

    def entry_of(self, spec: KVCacheSpec) -> SpecEntry:
        """The entry for ``spec``'s class, or for the nearest base class that is registered."""
        exact = next((entry for entry in self._entries.values() if entry.spec is type(spec)), None)
        if exact is not None:
            return exact
        self._load_entry_points()
        by_class = {entry.spec: entry for entry in self._entries.values()}
        for cls in type(spec).__mro__:
            if cls in by_class:
                return by_class[cls]
        raise SpecRegistryError(f"spec class {type(spec).__qualname__} is not registered; call register_spec")

    def __iter__(self) -> Iterator[SpecEntry]:
        self._load_entry_points()
        return iter(sorted(self._entries.values(), key=lambda entry: entry.name))

    def _load_entry_points(self) -> None:
        if self._group is None:
            return
        group, self._group = self._group, None
        failures: list[str] = []
        for point in entry_points(group=group):
            origin = f"entry point of {point.dist.name}" if point.dist else "entry point"
            try:
                spec = point.load()
                manager = getattr(spec, "manager", GENERIC_MANAGER)
                self.register(spec, manager=manager, name=point.name, origin=origin)
            except Exception as error:
                failures.append(f"{origin}: {point.name} = {point.value} fails: {error}")
        if failures:
            raise SpecRegistryError("\n".join(failures))


registry = SpecRegistry(ENTRY_POINT_GROUP)
register_spec = registry.register
