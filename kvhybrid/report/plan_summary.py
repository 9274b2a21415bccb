"""The figures of a plan, for ``summary.json`` and the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvhybrid.planning.capacity import (
    KindCost,
    blocks_held,
    costs,
    kinds_of,
    longest_request,
    requests_at_once,
    warnings,
)
from kvhybrid.planning.plan import CachePlan
from kvhybrid.planning.waste import uniform_waste


@dataclass(frozen=True)
class PlanSummary:
    """A finished plan."""

    name: str
    model_type: str
    num_layers: int
    plan: CachePlan
    lengths: Sequence[int]
    max_batched_tokens: int
    block_size: int
    """The requested tokens per block."""
    num_parameters: int
    overrides: Sequence[str] = ()
    status: str = "done"
    reason: str | None = None
    memory: Mapping[str, Any] = field(default_factory=dict)
    """Where the memory of the cache comes from, in bytes."""

    @property
    def costs(self) -> tuple[KindCost, ...]:
        """The bytes of each kind in a request of the maximum length."""
        return costs(self.plan, self.plan.blocks_per_request)

    @property
    def uniform_waste(self) -> float:
        """The share of the longest request that a cache with every token in every layer would waste."""
        return uniform_waste(self.plan.layer_specs.values(), self.plan.max_model_len)

    @property
    def warnings(self) -> list[str]:
        return list(warnings(self.plan, self.max_batched_tokens))

    def block_size_reason(self) -> str:
        """The reason for the groups' block sizes."""
        specs = [group.spec for group in self.plan.config.groups]
        sizes = sorted({spec.block_size for spec in specs if spec.cacheable})
        if sizes in ([], [self.block_size]):
            return "as asked for"
        states = [spec for spec in specs if spec.state]
        if states:
            largest = max(spec.unpadded_page_bytes for spec in states)
            return f"raised from {self.block_size} until a page of tokens holds a state of {largest:,} bytes"
        return f"scaled from {self.block_size}, so that the pages of all groups have one size"

    def at_lengths(self) -> list[dict[str, int]]:
        """Concurrent requests, and the bytes that each holds, for each length up to the longest."""
        plan = self.plan
        lengths = sorted({length for length in self.lengths if length < plan.max_model_len} | {plan.max_model_len})
        return [
            {
                "tokens": length,
                "requests_at_once": requests_at_once(plan, length),
                "bytes_per_request": plan.request_bytes(blocks_held(plan, length)),
            }
            for length in lengths
        ]

    def to_json(self) -> dict[str, Any]:
        """The content of ``summary.json``. Sizes are in bytes, and those of one GPU."""
        plan = self.plan
        return {
            "name": self.name,
            "status": self.status,
            "model_type": self.model_type,
            "num_parameters": self.num_parameters,
            "num_layers": self.num_layers,
            "layers": kinds_of(plan),
            "groups": [
                {
                    "name": group.name,
                    "kind": group.spec.kind,
                    "layers": list(group.layers),
                    "block_size": group.spec.block_size,
                    "page_bytes": group.spec.page_bytes,
                    "padding_bytes": padding,
                    "blocks_per_request": blocks,
                }
                for group, padding, blocks in zip(
                    plan.config.groups, plan.padding_bytes_per_block, plan.blocks_per_request, strict=True
                )
            ],
            "block_size_reason": self.block_size_reason(),
            "memory": dict(self.memory),
            "bytes_per_block": plan.bytes_per_block,
            "bytes_per_token": self.bytes_per_token,
            "num_blocks": plan.num_blocks,
            "pool_bytes": plan.memory_bytes,
            "max_model_len": plan.max_model_len,
            "max_in_flight_tokens": plan.max_in_flight_tokens,
            "concurrency": plan.concurrency,
            "capacity_tokens": plan.capacity_tokens,
            "longest_request": longest_request(plan),
            "padding_share": plan.padding_share,
            "uniform_waste": self.uniform_waste,
            "at_lengths": self.at_lengths(),
            "request_bytes_by_kind": {cost.kind: cost.num_bytes for cost in self.costs},
            "request_share_by_kind": {cost.kind: cost.share for cost in self.costs},
            "warnings": self.warnings,
            "overrides": list(self.overrides),
        }

    @property
    def bytes_per_token(self) -> float:
        """Bytes per token of a request of the maximum length."""
        plan = self.plan
        return plan.request_bytes(plan.blocks_per_request) / plan.max_model_len
