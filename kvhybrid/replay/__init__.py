"""Trace replay with the real scheduler and cache manager, without a model, on a modelled clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvhybrid.plugins import Registry

if TYPE_CHECKING:
    from kvhybrid.replay.arrivals import ArrivalProcess
    from kvhybrid.replay.cost import CostModel
    from kvhybrid.replay.trace import Trace

traces: Registry[Trace] = Registry(
    "trace format",
    "kvhybrid.traces",
    "kvhybrid.replay.trace:Trace",
    {"mooncake": "kvhybrid.replay.mooncake:MooncakeTrace"},
)
arrival_processes: Registry[ArrivalProcess] = Registry(
    "arrival process",
    "kvhybrid.arrivals",
    "kvhybrid.replay.arrivals:ArrivalProcess",
    {
        "one_by_one": "kvhybrid.replay.arrivals:OneByOne",
        "open_loop": "kvhybrid.replay.arrivals:OpenLoop",
    },
)
cost_models: Registry[CostModel] = Registry(
    "cost model",
    "kvhybrid.costs",
    "kvhybrid.replay.cost:CostModel",
    {"linear": "kvhybrid.replay.cost:LinearCost"},
)
