"""Scheduling: which requests compute which tokens in a step, and where the steps of a prefill end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvhybrid.plugins import Registry

if TYPE_CHECKING:
    from kvhybrid.scheduling.base import BaseScheduler

schedulers: Registry[BaseScheduler] = Registry(
    "scheduler",
    "kvhybrid.schedulers",
    "kvhybrid.scheduling.base:BaseScheduler",
    {"default": "kvhybrid.scheduling.scheduler:Scheduler"},
)
