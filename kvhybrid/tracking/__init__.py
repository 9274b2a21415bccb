"""Where the figures of a run go: one tracker a file."""

from __future__ import annotations

from kvhybrid.tracking.base import Tracker, TrackerError, Trackers
from kvhybrid.tracking.jsonl import JsonLinesTracker
from kvhybrid.tracking.wandb import WandbTracker

__all__ = ["JsonLinesTracker", "Tracker", "TrackerError", "Trackers", "WandbTracker"]
