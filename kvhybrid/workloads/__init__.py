"""What is asked of the engine: generated traffic, one workload a file."""

from __future__ import annotations

from kvhybrid.workloads.base import PromptList, Traffic, Workload, WorkloadRequest
from kvhybrid.workloads.few_shot import FewShot
from kvhybrid.workloads.multi_turn import MultiTurn
from kvhybrid.workloads.random import Random
from kvhybrid.workloads.shared_prefix import SharedPrefix

__all__ = [
    "FewShot",
    "MultiTurn",
    "PromptList",
    "Random",
    "SharedPrefix",
    "Traffic",
    "Workload",
    "WorkloadRequest",
]
