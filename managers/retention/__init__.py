"""Retention policies, which decide which window tails and states stay reusable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvhybrid.plugins import Registry

if TYPE_CHECKING:
    from kvhybrid.managers.retention.base import Retention

retention_policies: Registry[Retention] = Registry(
    "retention policy",
    "kvhybrid.retention",
    "kvhybrid.managers.retention.base:Retention",
    {
        "interval": "kvhybrid.managers.retention.base:Retention",
        "junction": "kvhybrid.managers.retention.junction:Junction",
        "optimal": "kvhybrid.managers.retention.optimal:Optimal",
        "path_cap": "kvhybrid.managers.retention.path_cap:PathCap",
        "thinning": "kvhybrid.managers.retention.thinning:Thinning",
    },
)
