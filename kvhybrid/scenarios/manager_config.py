"""A cache manager's configuration in the format of a scenario."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from kvhybrid.cache.config import KVCacheGroup
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.managers.eviction import orders
from kvhybrid.managers.retention.base import Retention
from kvhybrid.scenarios.config import DEFAULTS, MAMBA_MODES
from kvhybrid.specs import KVCacheSpec, registry

PAGE_FIELDS = frozenset(
    ("padded_page_bytes", "num_kv_heads", "head_size", "head_size_v", "dtype", "shapes", "dtypes", "names")
)
"""Fields that only say what a page looks like: no decision depends on them, unless they keep specs apart."""


def config_of(manager: KVCacheManager) -> dict[str, Any]:
    """The ``config`` from which a scenario builds a manager that decides as ``manager`` does.

    Raises:
        ValueError: It has something that a scenario cannot express.
    """
    config, coordinator = manager.config, manager.coordinator
    own = [group.name for group in config.groups if group.private_blocks]
    if own:
        raise ValueError(f"group {own[0]!r} has a pool of its own; a scenario knows one pool for all groups")
    if config.pools is not None:
        raise ValueError("this layout has a pool for each kind of block; a scenario knows one pool for all groups")
    most = coordinator.groups.max_in_flight_tokens
    content = {
        "hash_block_size": config.hash_block_size,
        "max_model_len": manager.max_model_len,
        "enable_caching": manager.enable_caching,
        "watermark": _watermark(manager),
        "max_in_flight_tokens": None if most == manager.max_model_len else most,
        "retention_interval": _retention_interval(manager),
        "eagle": [g for g, group in enumerate(config.groups) if group.draft] or False,
        "dcp": config.context_parallel,
        "eviction": _eviction(manager),
    }
    changed = {key: value for key, value in content.items() if value != DEFAULTS[key]}
    return {"num_blocks": config.num_blocks, "groups": _groups(config.groups), **changed}


def _watermark(manager: KVCacheManager) -> float:
    """A share of the pool that gives the number of blocks that the manager keeps free."""
    blocks = manager.watermark_blocks
    return min((blocks + 0.5) / manager.config.num_blocks, 1.0) if blocks else 0.0


def _eviction(manager: KVCacheManager) -> str:
    order = manager.block_pool._make_order
    if not isinstance(order, type):
        raise ValueError(f"the order of reuse is made by {order}; a scenario knows {', '.join(orders.names())}")
    return orders.name_of(order)


def _retention_interval(manager: KVCacheManager) -> int | None:
    retention = manager.coordinator.retention
    if type(retention) is not Retention:
        raise ValueError(f"the retention policy is {type(retention).__qualname__}; a scenario knows an interval")
    return retention.interval


def _groups(groups: tuple[KVCacheGroup, ...]) -> list[dict[str, Any]]:
    bare = [_group(group.spec, PAGE_FIELDS) for group in groups]
    for i, group in enumerate(groups):
        for j in range(i):
            if bare[i] == bare[j] and group.spec != groups[j].spec:
                return [_group(group.spec, frozenset()) for group in groups]
    return bare


def _group(spec: KVCacheSpec, leave_out: frozenset[str]) -> dict[str, Any]:
    kind = registry.name_of(type(spec))
    content: dict[str, Any] = {"spec": kind}
    for mode, kind_of_mode in MAMBA_MODES.items():
        if kind == kind_of_mode:
            content = {"spec": "mamba", "mode": mode}
    for field in fields(spec):
        value = getattr(spec, field.name)
        default = None if field.default is MISSING else field.default
        if field.init and field.name not in leave_out and (field.name == "block_size" or value != default):
            content[field.name] = value
    return content
