"""Cache planning: groups layers, unifies page sizes and computes the number of blocks."""

from kvhybrid.planning.error import PlanningError
from kvhybrid.planning.grouping import group_layers
from kvhybrid.planning.pages import unify_pages
from kvhybrid.planning.plan import CachePlan
from kvhybrid.planning.planner import longest_planned, plan_cache
from kvhybrid.planning.sizing import longest_model_len, request_blocks

__all__ = [
    "CachePlan",
    "PlanningError",
    "group_layers",
    "longest_model_len",
    "longest_planned",
    "plan_cache",
    "request_blocks",
    "unify_pages",
]
