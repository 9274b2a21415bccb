"""Checks a spec's page, its equality, and its name in the registry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

from kvhybrid.conformance.subject import spec_text
from kvhybrid.conformance.violation import Violation
from kvhybrid.managers.registry import manager_of
from kvhybrid.plugins import PluginError
from kvhybrid.specs import KVCacheSpec, registry

PAGE = "page"
VALUE = "value"
NAME = "name"


def check_page(spec: KVCacheSpec) -> None:
    """Check the parts of the page, and that its size depends correctly on block size and padding."""
    parts = spec.page_parts()
    if not parts or len({part.name for part in parts}) != len(parts):
        raise Violation(
            PAGE, f"{spec_text(spec)}: page_parts() = {parts}; accepted: at least one part, each name once"
        )
    for part in parts:
        if part.num_bytes < 1 or any(type(side) is not int or side < 1 for side in part.shape):
            raise Violation(PAGE, f"{spec_text(spec)}: page part {part.name!r} of shape {part.shape} is empty")
    bare = replace(spec, padded_page_bytes=None)
    own = bare.page_bytes
    if own != sum(part.num_bytes for part in parts):
        raise Violation(PAGE, f"{spec_text(spec)}: page_bytes = {own}, but its parts add up to something else")
    _check_padding(bare, own)
    for other in _with_other_blocks(bare):
        _check_growth(bare, other)


def _check_padding(spec: KVCacheSpec, own: int) -> None:
    padded = replace(spec, padded_page_bytes=own + 64).page_bytes
    if padded != own + 64:
        raise Violation(PAGE, f"{spec_text(spec)}: padded_page_bytes = {own + 64} gives page_bytes = {padded}")
    if own > 1:
        try:
            replace(spec, padded_page_bytes=own - 1)
        except ValueError:
            return
        raise Violation(PAGE, f"{spec_text(spec)}: padded_page_bytes = {own - 1}, less than the page, is accepted")


def _check_growth(spec: KVCacheSpec, larger: KVCacheSpec) -> None:
    own, grown = spec.page_bytes, larger.page_bytes
    sizes = f"blocks of {spec.block_size} and of {larger.block_size} tokens have pages of {own} and {grown} bytes"
    if spec.state:
        if own != grown:
            raise Violation(PAGE, f"{spec_text(spec)}: {sizes}; a state is the same whatever the block size")
    elif grown <= own and (spec.cacheable or spec.source == "encoder"):
        raise Violation(PAGE, f"{spec_text(spec)}: {sizes}; a page of tokens must grow with block_size")


def _with_other_blocks(spec: KVCacheSpec) -> Iterator[KVCacheSpec]:
    """``spec`` with larger blocks, if it accepts them."""
    for factor in (2, 3):
        try:
            yield replace(spec, block_size=factor * spec.block_size)
        except ValueError:
            continue


def check_value(spec: KVCacheSpec) -> None:
    """Check that the spec is frozen and hashable, and equal exactly if all fields are equal."""
    cls = type(spec)
    parameters: Any = cls.__dict__.get("__dataclass_params__")
    if parameters is None:
        raise Violation(
            VALUE, f"{cls.__qualname__} is not a dataclass itself: decorate it with @dataclass(frozen=True)"
        )
    try:
        object_set: Any = setattr
        object_set(spec, "block_size", spec.block_size)
    except FrozenInstanceError:
        pass
    else:
        raise Violation(VALUE, f"{cls.__qualname__} is not frozen: decorate it with @dataclass(frozen=True)")
    twin = replace(spec)
    if twin != spec or hash(twin) != hash(spec):
        raise Violation(VALUE, f"{spec_text(spec)}: a copy with the same fields is not equal, or has another hash")
    for field in fields(spec):
        value = getattr(spec, field.name)
        if type(value) is int and field.init:
            try:
                other = replace(spec, **{field.name: value + 1})
            except ValueError:
                continue
            if other == spec:
                raise Violation(VALUE, f"{spec_text(spec)}: equal to one whose {field.name} is {value + 1}")


def check_name(spec: KVCacheSpec) -> str:
    """Check that the spec is registered under its own name with a loadable manager. Returns the name."""
    cls = type(spec)
    advice = "decorate it with @register_spec, or name it in the entry-point group kvhybrid.specs"
    try:
        name = registry.name_of(cls)
        registered = registry.get(name)
    except PluginError as error:
        raise Violation(NAME, f"{error}; {advice}") from error
    if registered is not cls:
        raise Violation(
            NAME, f"{cls.__qualname__} is not registered and would be served as its base {name!r}; {advice}"
        )
    try:
        manager_of(cls)
    except PluginError as error:
        raise Violation(NAME, str(error)) from error
    return name
