"""The specs by name: what is built in, and what `register_spec` takes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kvhybrid.plugins import PluginError
from kvhybrid.specs import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec, register_spec, registry
from tests.kvhybrid.distributions import isolate


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch, registry)


@dataclass(frozen=True, kw_only=True)
class ForeignSpec(FullAttentionSpec):
    kind = "foreign"


def test_every_built_in_kind_is_listed_in_order() -> None:
    built_in = [entry.name for entry in registry.entries() if entry.origin == "built in"]
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
    assert all(registry.get(name).kind == name for name in built_in)


def test_a_name_leads_to_its_spec_and_back() -> None:
    assert registry.get("sliding_window") is SlidingWindowSpec
    assert registry.name_of(SlidingWindowSpec) == "sliding_window"


def test_a_subclass_is_served_as_its_nearest_registered_base() -> None:
    assert registry.name_of(ForeignSpec) == "full"


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(PluginError, match=r"unknown spec 'ful'; accepted: .*cross, full, mamba"):
        registry.get("ful")


def test_the_decorator_registers_a_spec_under_its_kind() -> None:
    assert register_spec(ForeignSpec) is ForeignSpec
    assert registry.get("foreign") is ForeignSpec
    assert registry.name_of(ForeignSpec) == "foreign"


@pytest.mark.parametrize("thing", [int, FullAttentionSpec(block_size=4), "full", None])
def test_only_a_spec_class_is_taken(thing: type[KVCacheSpec]) -> None:
    with pytest.raises(PluginError, match=r"must be a subclass of kvhybrid.specs.base:KVCacheSpec, found"):
        register_spec(thing)


def test_a_spec_needs_a_name() -> None:
    with pytest.raises(PluginError, match=r"spec kvhybrid.specs.base:KVCacheSpec needs a name"):
        register_spec(KVCacheSpec)


def test_a_class_that_is_not_registered_has_no_name() -> None:
    with pytest.raises(PluginError, match="KVCacheSpec is not registered; registered: chunked_local, cross"):
        registry.name_of(KVCacheSpec)
