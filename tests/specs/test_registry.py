"""The registry: kinds of cache by name, built in or from another distribution."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import invalidate_caches
from pathlib import Path

import pytest

from kvhybrid.specs import (
    FullAttentionSpec,
    KVCacheSpec,
    PrivateStateSpec,
    SlidingWindowSpec,
    SpecRegistry,
    SpecRegistryError,
    registry,
)
from kvhybrid.specs.registry import GENERIC_MANAGER

GROUP = "kvhybrid.test_specs"
"""An entry-point group of our own: the real registry must not see what these tests install."""

Install = Callable[..., str]
"""Writes a distribution with these entry points onto the path and returns its module's name."""


class ForeignManager:
    """A stand-in for a plug-in's manager class."""


@dataclass(frozen=True, kw_only=True)
class ForeignSpec(FullAttentionSpec):
    kind = "foreign"


@pytest.fixture
def own() -> SpecRegistry:
    return SpecRegistry()


class TestBuiltIn:
    def test_every_built_in_kind_is_listed_in_order(self) -> None:
        built_in = [entry.name for entry in registry if entry.origin == "built in"]
        assert built_in == [
            "chunked_local",
            "cross",
            "full",
            "mamba",
            "mla",
            "private_state",
            "sink_window",
            "sliding_window",
        ]

    def test_an_entry_names_its_spec_and_its_manager(self) -> None:
        entry = registry.get("sliding_window")
        assert entry.spec is SlidingWindowSpec
        assert entry.manager_name == "SlidingWindowManager"

    def test_a_spec_leads_to_its_entry(self) -> None:
        assert registry.entry_of(PrivateStateSpec(block_size=4)).name == "private_state"

    def test_a_subclass_is_served_as_its_nearest_registered_base(self) -> None:
        assert registry.entry_of(ForeignSpec(block_size=4)).name == "full"

    def test_an_unknown_name_is_answered_with_the_known_ones(self) -> None:
        with pytest.raises(SpecRegistryError, match=r"unknown spec 'ful'; registered: .*cross, full, mamba"):
            registry.get("ful")


class TestRegister:
    def test_it_decorates(self, own: SpecRegistry) -> None:
        @own.register
        @dataclass(frozen=True, kw_only=True)
        class Decorated(FullAttentionSpec):
            kind = "decorated"

        assert Decorated(block_size=4).block_size == 4
        entry = own.get("decorated")
        assert (entry.spec, entry.manager, entry.origin) == (Decorated, GENERIC_MANAGER, "registered")

    def test_a_manager_may_be_a_class_and_a_name_may_differ_from_the_kind(self, own: SpecRegistry) -> None:
        own.register(ForeignSpec, manager=ForeignManager, name="mine")
        assert own.get("mine").manager_class() is ForeignManager
        assert own.get("mine").manager_name == "ForeignManager"
        with pytest.raises(SpecRegistryError, match="unknown spec 'foreign'; registered: mine"):
            own.get("foreign")

    def test_a_manager_may_be_a_path(self, own: SpecRegistry) -> None:
        own.register(ForeignSpec, manager="collections:OrderedDict")
        assert own.get("foreign").manager_class().__name__ == "OrderedDict"

    @pytest.mark.parametrize("path", ["no_such_module:Manager", "collections:NoSuchManager"])
    def test_a_manager_that_cannot_be_imported_is_named_with_its_spec(self, own: SpecRegistry, path: str) -> None:
        own.register(ForeignSpec, manager=path)
        with pytest.raises(SpecRegistryError, match=f"spec 'foreign': its manager '{path}' cannot be imported"):
            own.get("foreign").manager_class()

    def test_a_name_is_given_once(self, own: SpecRegistry) -> None:
        own.register(FullAttentionSpec, origin="built in")
        with pytest.raises(
            SpecRegistryError,
            match=r"'full' is taken by .*FullAttentionSpec \(built in\); .*ForeignSpec needs",
        ):
            own.register(ForeignSpec, name="full")
        assert own.get("full").spec is FullAttentionSpec

    @pytest.mark.parametrize("thing", [ForeignManager, FullAttentionSpec(block_size=4), "full", None])
    def test_only_a_spec_class_is_taken(self, own: SpecRegistry, thing: type[KVCacheSpec]) -> None:
        with pytest.raises(SpecRegistryError, match="must be a subclass of KVCacheSpec, found"):
            own.register(thing)

    def test_a_spec_needs_a_name(self, own: SpecRegistry) -> None:
        with pytest.raises(SpecRegistryError, match="KVCacheSpec has no name: set its class variable `kind`"):
            own.register(KVCacheSpec)

    def test_an_unregistered_class_has_no_entry(self, own: SpecRegistry) -> None:
        with pytest.raises(SpecRegistryError, match="ForeignSpec is not registered"):
            own.entry_of(ForeignSpec(block_size=4))


class TestEntryPoints:
    """Another distribution brings specs by the metadata that it is installed with."""

    @pytest.fixture
    def install(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
        module = "plugin_with_sinks"

        def write(points: str, body: str = "") -> str:
            info = tmp_path / "sinks-1.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sinks\nVersion: 1.0\n")
            (info / "entry_points.txt").write_text(f"[{GROUP}]\n{points.format(module=module)}\n")
            (tmp_path / f"{module}.py").write_text(
                "from dataclasses import dataclass\n"
                "from kvhybrid.specs import FullAttentionSpec\n"
                "@dataclass(frozen=True, kw_only=True)\n"
                "class SinkSpec(FullAttentionSpec):\n"
                "    sinks: int = 4\n" + body
            )
            monkeypatch.syspath_prepend(tmp_path)
            invalidate_caches()
            return module

        yield write
        sys.modules.pop(module, None)

    def test_they_are_loaded_when_a_name_is_first_looked_up(self, install: Install) -> None:
        module = install("sinks = {module}:SinkSpec")
        own = SpecRegistry(GROUP)
        own.register(FullAttentionSpec)
        assert module not in sys.modules
        entry = own.get("sinks")
        assert module in sys.modules
        assert entry.spec.__name__ == "SinkSpec"
        assert (entry.origin, entry.manager) == ("entry point of sinks", GENERIC_MANAGER)
        assert [entry.name for entry in own] == ["full", "sinks"]

    def test_a_spec_may_name_its_manager(self, install: Install) -> None:
        install("sinks = {module}:SinkSpec", body="    manager = 'collections:OrderedDict'\n")
        assert SpecRegistry(GROUP).get("sinks").manager == "collections:OrderedDict"

    def test_a_spec_leads_to_its_entry_without_a_look_up_by_name(self, install: Install) -> None:
        module = install("sinks = {module}:SinkSpec")
        spec = __import__(module).SinkSpec(block_size=4)
        assert SpecRegistry(GROUP).entry_of(spec).name == "sinks"

    @pytest.mark.parametrize(
        ("points", "message"),
        [
            ("sinks = {module}:NoSuchSpec", "NoSuchSpec fails: module .* has no attribute 'NoSuchSpec'"),
            ("sinks = no_such_plugin:Spec", "no_such_plugin:Spec fails: No module named 'no_such_plugin'"),
        ],
    )
    def test_one_that_cannot_be_loaded_is_named(self, install: Install, points: str, message: str) -> None:
        install(points)
        with pytest.raises(SpecRegistryError, match=rf"entry point of sinks: sinks = .*{message}"):
            SpecRegistry(GROUP).get("sinks")

    def test_a_module_that_raises_is_named(self, install: Install) -> None:
        install("sinks = {module}:SinkSpec", body="raise RuntimeError('no licence')\n")
        with pytest.raises(SpecRegistryError, match=r"entry point of sinks: .* fails: no licence"):
            SpecRegistry(GROUP).get("sinks")

    def test_one_that_is_no_spec_is_refused(self, install: Install) -> None:
        install("sinks = {module}:dataclass")
        with pytest.raises(SpecRegistryError, match="must be a subclass of KVCacheSpec"):
            SpecRegistry(GROUP).get("sinks")

    def test_a_taken_name_is_refused(self, install: Install) -> None:
        install("full = {module}:SinkSpec")
        own = SpecRegistry(GROUP)
        own.register(FullAttentionSpec, origin="built in")
        with pytest.raises(SpecRegistryError, match=r"'full' is taken by .* \(built in\); .*SinkSpec"):
            own.get("full")
