"""What is asked of the engine, generated or read: one workload a file."""

from __future__ import annotations

from kvhybrid.workloads.base import Answer, PromptList, Traffic, Workload, WorkloadRequest
from kvhybrid.workloads.few_shot import FewShot
from kvhybrid.workloads.multi_turn import MultiTurn
from kvhybrid.workloads.prompts import Prompts
from kvhybrid.workloads.random import Random
from kvhybrid.workloads.shared_prefix import SharedPrefix
from kvhybrid.workloads.source_code import SourceCode

__all__ = [
    "Answer",
    "FewShot",
    "MultiTurn",
    "PromptList",
    "Prompts",
    "Random",
    "SharedPrefix",
    "SourceCode",
    "Traffic",
    "Workload",
    "WorkloadRequest",
]
