"""The ``config`` of a scenario as a cache manager."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvhybrid.cache_config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache_manager import KVCacheManager
from kvhybrid.specs import KVCacheSpec, registry

DEFAULTS: dict[str, Any] = {
    "hash_block_size": None,
    "max_model_len": 8192,
    "enable_caching": True,
    "watermark": 0.0,
    "max_in_flight_tokens": None,
    "retention_interval": None,
    "eagle": False,
    "dcp": 1,
}


class ScenarioError(ValueError):
    """A scenario that cannot be read: it names the key, what was found and what is accepted."""


def spec_of(group: Mapping[str, Any]) -> KVCacheSpec:
    """The spec that a scenario's group describes: its kind, and the fields of that kind."""
    fields = dict(group)
    kind = fields.pop("spec", None)
    if kind == "mamba" and fields.pop("mode", "align") == "none":
        kind = "private_state"
    try:
        return registry.get(str(kind)).spec(**fields)
    except TypeError as error:
        raise ScenarioError(f"group {dict(group)}: {error}") from None
    except ValueError as error:
        raise ScenarioError(str(error)) from None


def cache_config(config: Mapping[str, Any]) -> KVCacheConfig:
    """The groups and the pool of a scenario's ``config``."""
    unknown = set(config) - set(DEFAULTS) - {"groups", "num_blocks"}
    if unknown:
        accepted = ", ".join(["groups", "num_blocks", *DEFAULTS])
        raise ScenarioError(f"config: unknown key {sorted(unknown)[0]!r}; accepted: {accepted}")
    missing = {"groups", "num_blocks"} - set(config)
    if missing:
        raise ScenarioError(f"config: the key {sorted(missing)[0]!r} is missing")
    drafts = config.get("eagle") or ()
    groups = tuple(
        KVCacheGroup(f"{group.get('spec')}.{g}", spec_of(group), draft=g in drafts)
        for g, group in enumerate(config["groups"])
    )
    return KVCacheConfig(
        groups=groups,
        num_blocks=config["num_blocks"],
        hash_block_size=config.get("hash_block_size"),
        context_parallel=config.get("dcp", 1),
    )


def build_manager(config: Mapping[str, Any]) -> KVCacheManager:
    """The cache manager of a scenario's ``config``."""
    settings = {**DEFAULTS, **config}
    return KVCacheManager(
        cache_config(config),
        max_model_len=settings["max_model_len"],
        max_in_flight_tokens=settings["max_in_flight_tokens"],
        enable_caching=settings["enable_caching"],
        watermark=settings["watermark"],
        retention_interval=settings["retention_interval"],
    )
