"""Workloads, generated or read from files: one per file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvhybrid.plugins import Registry

if TYPE_CHECKING:
    from kvhybrid.workloads.base import Workload

workloads: Registry[Workload] = Registry(
    "workload",
    "kvhybrid.workloads",
    "kvhybrid.workloads.base:Workload",
    {
        "few_shot": "kvhybrid.workloads.few_shot:FewShot",
        "multi_turn": "kvhybrid.workloads.multi_turn:MultiTurn",
        "prompts": "kvhybrid.workloads.prompts:Prompts",
        "random": "kvhybrid.workloads.random:Random",
        "shared_prefix": "kvhybrid.workloads.shared_prefix:SharedPrefix",
        "source_code": "kvhybrid.workloads.source_code:SourceCode",
    },
)
