"""Builds a cache manager from the ``config`` of a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from itertools import count
from typing import Any

from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.managers.eviction import orders
from kvhybrid.plugins import PluginError
from kvhybrid.scenarios.form import (
    DRAFTS,
    FLAG,
    LIST,
    NAME,
    NUMBER,
    SIZE,
    ScenarioError,
    UnsupportedScenarioError,
    Value,
    check_keys,
    listed,
    or_null,
    shortened,
    whole,
)
from kvhybrid.specs import KVCacheSpec, registry

REQUIRED: Mapping[str, Value] = {"num_blocks": SIZE, "groups": LIST}
OPTIONAL: Mapping[str, Value] = {
    "hash_block_size": or_null(SIZE),
    "max_model_len": SIZE,
    "enable_caching": FLAG,
    "watermark": NUMBER,
    "max_in_flight_tokens": or_null(SIZE),
    "retention_interval": or_null(whole(0)),
    "eagle": DRAFTS,
    "dcp": SIZE,
    "eviction": NAME,
}
DEFAULTS: Mapping[str, Any] = {
    "hash_block_size": None,
    "max_model_len": 8192,
    "enable_caching": True,
    "watermark": 0.0,
    "max_in_flight_tokens": None,
    "retention_interval": None,
    "eagle": False,
    "dcp": 1,
    "eviction": "lru",
}
MOST_PAGE_BYTES = 1 << 40
FIELDS: Mapping[str, Value] = {"int": SIZE, "int | None": or_null(whole(0, MOST_PAGE_BYTES)), "str": NAME}
"""Accepted values of a spec's fields, by type. Fields of other types are validated by the spec."""
MAMBA_MODES = {"align": "mamba", "none": "private_state"}
"""The kind of spec for each ``mode`` of a Mamba group."""


def spec_of(group: Mapping[str, Any], where: str = "group") -> KVCacheSpec:
    """The spec of a scenario's group, from its kind and fields."""
    given = dict(group)
    kind = given.pop("spec", None)
    if type(kind) is not str:
        found = "the key 'spec' is missing" if kind is None else f"spec = {shortened(kind)}"
        raise ScenarioError(f"{where}: {found}; accepted: {listed(registry.names())}")
    if kind == "mamba":
        mode = given.pop("mode", "align")
        if type(mode) is not str or mode not in MAMBA_MODES:
            raise ScenarioError(f"{where}: mode = {shortened(mode)}; accepted: {listed(MAMBA_MODES)}")
        kind = MAMBA_MODES[mode]
    try:
        spec = registry.get(kind)
    except PluginError as error:
        raise UnsupportedScenarioError(f"{where}: {error}") from None
    _check_fields(where, given, spec)
    try:
        built = spec(**{name: _frozen(value) for name, value in given.items()})
        page_bytes = built.page_bytes
    except (TypeError, ValueError) as error:
        raise ScenarioError(f"{where}: {error}") from None
    if page_bytes > MOST_PAGE_BYTES:
        raise ScenarioError(f"{where}: a page of {page_bytes:,} bytes; accepted: at most {MOST_PAGE_BYTES:,}")
    return built


def _check_fields(where: str, given: Mapping[str, Any], spec: type[KVCacheSpec]) -> None:
    known = {field.name: field for field in fields(spec) if field.init}
    for name, value in given.items():
        if name not in known:
            raise ScenarioError(f"{where}: unknown key {name!r}; accepted: spec, {listed(known)}")
        accepted = FIELDS.get(str(known[name].type))
        if accepted is not None and not accepted.fits(value):
            raise ScenarioError(f"{where}: {name} = {shortened(value)}; accepted: {accepted.accepted}")
    for name, field in known.items():
        if name not in given and field.default is MISSING and field.default_factory is MISSING:
            raise ScenarioError(f"{where}: the key {name!r} is missing")


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def cache_config(config: Mapping[str, Any]) -> KVCacheConfig:
    """The groups and the pool in a scenario's ``config``."""
    check_keys("config", config, REQUIRED, OPTIONAL)
    drafts = config.get("eagle") or ()
    for g, group in enumerate(config["groups"]):
        if type(group) is not dict:
            raise ScenarioError(f"config: groups[{g}] = {shortened(group)}; accepted: an object")
    for g in drafts:
        if not 0 <= g < len(config["groups"]):
            raise ScenarioError(f"config: eagle = {shortened(drafts)}; accepted: indices of the groups")
    groups = tuple(
        KVCacheGroup(f"{group.get('spec')}.{g}", spec_of(group, f"config: groups[{g}]"), draft=g in drafts)
        for g, group in enumerate(config["groups"])
    )
    return KVCacheConfig(
        groups=groups,
        num_blocks=config["num_blocks"],
        hash_block_size=config.get("hash_block_size"),
        context_parallel=config.get("dcp", 1),
    )


def build_manager(config: Mapping[str, Any], watched: bool = False) -> KVCacheManager:
    """Build the manager for a scenario's ``config``; if ``watched``, it records causes, events and residency."""
    ticks = count()
    settings = {**DEFAULTS, **config}
    groups = cache_config(config)
    if settings["eviction"] not in orders:
        # A data file must not choose what is imported, so "module:Class" is not accepted here.
        raise UnsupportedScenarioError(
            f"config: eviction = {settings['eviction']!r}; accepted: {listed(orders.names())}"
        )
    try:
        return KVCacheManager(
            groups,
            max_model_len=settings["max_model_len"],
            max_in_flight_tokens=settings["max_in_flight_tokens"],
            enable_caching=settings["enable_caching"],
            watermark=settings["watermark"],
            retention_interval=settings["retention_interval"],
            eviction=settings["eviction"],
            track_misses=watched,
            record_events=watched,
            residency_clock=(lambda: float(next(ticks))) if watched else None,
        )
    except ValueError as error:
        raise ScenarioError(f"config: {error}") from None
