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
    {
        "agent_loops": "kvhybrid.replay.generators.agent_loops:AgentLoops",
        "agentic": "kvhybrid.replay.agentic:AgenticTrace",
        "azure": "kvhybrid.replay.azure:AzureTrace",
        "burstgpt": "kvhybrid.replay.burstgpt:BurstGptTrace",
        "few_shot": "kvhybrid.replay.generators.few_shot:FewShot",
        "jsonl": "kvhybrid.replay.json_lines:JsonLinesTrace",
        "mooncake": "kvhybrid.replay.mooncake:MooncakeTrace",
        "multi_turn": "kvhybrid.replay.generators.multi_turn:MultiTurn",
        "needle_forks": "kvhybrid.replay.generators.needle_forks:NeedleForks",
        "round_robin": "kvhybrid.replay.generators.round_robin:RoundRobin",
        "shared_prefix": "kvhybrid.replay.generators.shared_prefix:SharedPrefix",
        "sharegpt": "kvhybrid.replay.sharegpt:ShareGptTrace",
        "zipf": "kvhybrid.replay.generators.zipf:Zipf",
    },
)
arrival_processes: Registry[ArrivalProcess] = Registry(
    "arrival process",
    "kvhybrid.arrivals",
    "kvhybrid.replay.arrivals:ArrivalProcess",
    {
        "closed_loop": "kvhybrid.replay.closed_loop:ClosedLoop",
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
