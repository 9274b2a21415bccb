"""The groups of a config whose choices are plug-ins. Imports no Hydra and no plug-in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvhybrid.managers.eviction import orders
from kvhybrid.managers.retention import retention_policies
from kvhybrid.planning.layouts import layouts
from kvhybrid.plugins import Registry
from kvhybrid.replay import arrival_processes, cost_models, traces
from kvhybrid.scheduling import schedulers
from kvhybrid.settings import models
from kvhybrid.settings.cache import EvictionSettings, RetentionSettings, SchedulerSettings
from kvhybrid.tracking import trackers
from kvhybrid.workloads import workloads


@dataclass(frozen=True)
class Part:
    """A group of a config. Its key ``kind`` names the plug-in, and its other keys are the plug-in's parameters."""

    registry: Registry[Any]
    settings: type[Any] | None = None
    """For a plug-in that is created later with additional arguments: the dataclass with its choice and the keys
    that all plug-ins of its kind have."""
    given: frozenset[str] = frozenset()
    """Parameters of its ``__init__`` that do not come from the config."""


PARTS: Mapping[str, Part] = {
    "model": Part(models),
    "workload": Part(workloads),
    "trace": Part(traces),
    "executor": Part(arrival_processes),
    "cost": Part(cost_models),
    "scheduler": Part(
        schedulers,
        SchedulerSettings,
        frozenset(("cache", "max_batched_tokens", "max_num_seqs", "end_token_ids")),
    ),
    "eviction": Part(orders, EvictionSettings, frozenset(("blocks",))),
    "retention": Part(
        retention_policies, RetentionSettings, frozenset(("interval", "scheduler_block_size", "draft"))
    ),
    "layout": Part(layouts),
    "tracking": Part(trackers),
}
"""By group. ``tracking`` holds any number of plug-ins, each under a name; the others hold one."""
