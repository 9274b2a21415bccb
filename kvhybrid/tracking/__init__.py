"""Trackers, which receive the metrics of a run: one per file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvhybrid.plugins import Registry

if TYPE_CHECKING:
    from kvhybrid.tracking.base import Tracker

trackers: Registry[Tracker] = Registry(
    "tracker",
    "kvhybrid.trackers",
    "kvhybrid.tracking.base:Tracker",
    {
        "jsonl": "kvhybrid.tracking.jsonl:JsonLinesTracker",
        "wandb": "kvhybrid.tracking.wandb:WandbTracker",
    },
)
