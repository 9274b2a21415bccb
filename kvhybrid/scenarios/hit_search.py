"""Scenarios of kind ``hit_search``: a look-up over blocks with explicitly assigned keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request
from kvhybrid.managers.arrays import int_array
from kvhybrid.scenarios.config import build_manager
from kvhybrid.scenarios.form import ScenarioError

IDS_PER_GROUP = 50
FIRST_ID = 10


def hit_search(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a scenario of this kind.

    Raises:
        ScenarioError: An entry of ``cached`` contradicts the configuration.
    """
    manager, request = keyed_by_hand(scenario)
    hit = manager.coordinator.find_longest_cache_hit(request, scenario["max_length"])
    return {"hit_tokens": hit.num_tokens, "hit_blocks": list(hit.get_block_ids()), "junction": hit.junction}


def keyed_by_hand(scenario: Mapping[str, Any]) -> tuple[KVCacheManager, Request]:
    """A manager whose blocks have the keys in ``cached``, and the request to look up.

    Character i of group g's pattern is for block ``10 + 50 · g + i``.
    """
    config = dict(scenario["config"])
    if type(config.get("groups")) is list and type(config.get("num_blocks", 0)) is int:
        least = FIRST_ID + IDS_PER_GROUP * len(config["groups"])
        config["num_blocks"] = max(config.get("num_blocks", 0), least)
    manager = build_manager(config)
    units = _units(scenario, manager)
    length = max((len(e["pattern"]) * u for e, u in zip(scenario["cached"], units, strict=True)), default=1)
    request = Request("searched", range(length), hasher=manager.hasher)
    if manager.enable_caching:
        numbers = manager.coordinator.numbers(request)
        for entry, unit in zip(scenario["cached"], units, strict=True):
            at = [i for i, present in enumerate(entry["pattern"]) if present == "1"]
            ids = int_array([FIRST_ID + IDS_PER_GROUP * entry["group"] + i for i in at])
            keys = numbers[[(i + 1) * unit // manager.config.hash_unit - 1 for i in at]]
            manager.block_pool.keys.register(entry["group"], ids, keys)
    return manager, request


def _units(scenario: Mapping[str, Any], manager: KVCacheManager) -> list[int]:
    """Tokens per character of every entry of ``cached``."""
    sizes, unit = manager.config.block_sizes, manager.config.hash_unit
    units: list[int] = []
    for number, entry in enumerate(scenario["cached"]):
        if entry["group"] >= len(sizes):
            found = f"cached[{number}]: group = {entry['group']}"
            raise ScenarioError(f"{found}; accepted: 0 to {len(sizes) - 1}")
        units.append(int(entry.get("unit", sizes[entry["group"]])))
        if units[-1] % unit:
            found = f"cached[{number}]: unit = {units[-1]}"
            raise ScenarioError(f"{found}; accepted: a multiple of the hash unit {unit}")
    return units
