"""Which manager serves a spec: its own, that of its kind, or the generic one."""

from __future__ import annotations

from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import pytest

from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.managers.full import FullAttentionManager
from kvhybrid.managers.registry import manager_of, managers
from kvhybrid.managers.sliding_window import SlidingWindowManager
from kvhybrid.plugins import PluginError
from kvhybrid.specs import (
    FullAttentionSpec,
    KVCacheSpec,
    MLAAttentionSpec,
    PrivateStateSpec,
    SinkWindowSpec,
    SlidingWindowSpec,
    register_spec,
    registry,
)
from tests.kvhybrid.distributions import isolate, write_distribution


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch, registry, managers)


class ForeignManager(SingleTypeKVCacheManager):
    """A manager that a plug-in brings along."""


def foreign_spec(manager: Any = None) -> type[KVCacheSpec]:
    spec = make_dataclass("ForeignSpec", (), bases=(FullAttentionSpec,), frozen=True, kw_only=True)
    spec.kind, spec.manager = "foreign", manager
    found: type[KVCacheSpec] = spec
    return found


@pytest.mark.parametrize(
    ("spec", "manager"),
    [
        (FullAttentionSpec, FullAttentionManager),
        (MLAAttentionSpec, FullAttentionManager),
        (SlidingWindowSpec, SlidingWindowManager),
        (SinkWindowSpec, SingleTypeKVCacheManager),
        (PrivateStateSpec, SingleTypeKVCacheManager),
    ],
)
def test_a_built_in_spec_has_the_manager_of_its_kind(spec: type[KVCacheSpec], manager: type[Any]) -> None:
    assert manager_of(spec) is manager


def test_every_manager_serves_a_registered_spec() -> None:
    assert set(managers.names()) <= set(registry.names())


def test_a_spec_of_its_own_name_has_the_generic_manager() -> None:
    assert manager_of(register_spec(foreign_spec())) is SingleTypeKVCacheManager


def test_a_spec_without_a_name_is_served_as_its_base() -> None:
    assert manager_of(foreign_spec()) is FullAttentionManager


@pytest.mark.parametrize(
    "manager", [ForeignManager, f"{__name__}:ForeignManager", "sliding_window"], ids=["class", "path", "name"]
)
def test_the_decorator_honours_the_class_variable_manager(manager: Any) -> None:
    found = manager_of(register_spec(foreign_spec(manager)))
    assert found.__name__ == ("SlidingWindowManager" if manager == "sliding_window" else "ForeignManager")


def test_a_manager_may_be_registered_for_a_kind() -> None:
    managers.register("foreign")(ForeignManager)
    assert manager_of(register_spec(foreign_spec())) is ForeignManager


@pytest.mark.parametrize(
    ("manager", "reason"),
    [
        ("no_such_module:Manager", "cannot be loaded: No module named 'no_such_module'"),
        ("collections:OrderedDict", "must be a subclass of kvhybrid.managers.base:SingleTypeKVCacheManager"),
        ("nobody", "unknown manager 'nobody'; accepted: chunked_local, "),
        (dict, "must be a subclass of kvhybrid.managers.base:SingleTypeKVCacheManager"),
    ],
)
def test_a_manager_that_cannot_be_used_is_named_with_its_spec(manager: Any, reason: str) -> None:
    with pytest.raises(PluginError, match=f"^spec 'foreign': .*{reason}"):
        manager_of(register_spec(foreign_spec(manager)))


SOURCE = """
from dataclasses import dataclass
from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.specs import FullAttentionSpec

class Named(SingleTypeKVCacheManager): pass
class Pointed(SingleTypeKVCacheManager): pass

@dataclass(frozen=True, kw_only=True)
class NamingSpec(FullAttentionSpec):
    manager = "plugin_with_managers:Named"

@dataclass(frozen=True, kw_only=True)
class OtherSpec(FullAttentionSpec):
    pass
"""


def test_entry_points_bring_specs_and_their_managers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "plugin_with_managers"
    points = {
        registry.group: f"naming = {module}:NamingSpec\nother = {module}:OtherSpec",
        managers.group: f"other = {module}:Pointed",
    }
    write_distribution(tmp_path, "plugin-with-managers", {module: SOURCE}, points)
    monkeypatch.syspath_prepend(tmp_path)
    assert manager_of(registry.get("naming")).__name__ == "Named"
    assert manager_of(registry.get("other")).__name__ == "Pointed"
