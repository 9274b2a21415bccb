"""Capacity: what fits in a plan, the bytes of a request by kind, and warnings about requests that can never
hit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvhybrid.planning.plan import CachePlan
from kvhybrid.planning.planner import plan_cache
from kvhybrid.planning.sizing import longest_model_len, request_blocks
from kvhybrid.specs import FullAttentionSpec, KVCacheSpec

PADDING = "padding"
MOST_TOKENS = 1 << 30
"""Upper bound, in tokens, of the search for the longest request: a model with only states has no limit."""


@dataclass(frozen=True)
class KindCost:
    """The bytes of the layers of one kind, or of padding, in a request."""

    kind: str
    num_bytes: int
    share: float
    """Share of all bytes that the request holds, 0 to 1."""


def kinds_of(plan: CachePlan) -> dict[str, list[str]]:
    """The layers by kind, in the order of the model; window and chunk sizes are part of the kind."""
    kinds: dict[str, list[str]] = {}
    for layer, spec in plan.layer_specs.items():
        kinds.setdefault(kind_name(spec), []).append(layer)
    return kinds


def kind_name(spec: KVCacheSpec) -> str:
    """The registered name and, if any, the size of the window or chunk, e.g. ``sliding_window 1024``."""
    sizes = [str(getattr(spec, name)) for name in ("window", "chunk") if hasattr(spec, name)]
    return " ".join([spec.kind, *sizes])


def blocks_held(plan: CachePlan, num_tokens: int) -> tuple[int, ...]:
    """Per group, the blocks that a decoding request of ``num_tokens`` tokens holds."""
    start = max(num_tokens - 1, 0)
    return tuple(
        group.spec.step_blocks(start, num_tokens, plan.config.block_size_of(group.spec))
        for group in plan.config.groups
    )


def costs(plan: CachePlan, blocks: Sequence[int]) -> tuple[KindCost, ...]:
    """The bytes of ``blocks`` blocks of each group, by kind and with padding separate."""
    used: dict[str, int] = dict.fromkeys(kinds_of(plan), 0)
    for group, count in zip(plan.config.groups, blocks, strict=True):
        for layer in group.layers:
            spec = plan.layer_specs[layer]
            used[kind_name(spec)] += count * spec.unpadded_page_bytes
    total = plan.request_bytes(blocks)
    used[PADDING] = total - sum(used.values())
    return tuple(KindCost(kind, size, size / total if total else 0.0) for kind, size in used.items())


def requests_at_once(plan: CachePlan, num_tokens: int) -> int:
    """Requests of ``num_tokens`` tokens that fit in the pool together, each with the most blocks that it holds."""
    return plan.division.num_requests(request_blocks(plan.config, num_tokens, plan.max_in_flight_tokens))


def longest_request(plan: CachePlan) -> int | None:
    """Tokens of the longest request that fits, even beyond the model's own limit; None if unlimited."""
    longest = longest_model_len(plan.config, MOST_TOKENS, plan.max_in_flight_tokens)
    return None if longest == MOST_TOKENS else longest


def warnings(plan: CachePlan, max_batched_tokens: int) -> Iterator[str]:
    """The reasons why requests of this cache can never hit, one line each."""
    cacheable = [group for group in plan.config.groups if group.spec.cacheable]
    for group in plan.config.groups:
        if not group.spec.cacheable:
            yield f"{group.name}: nothing that it keeps may be shared, so no prompt is ever resumed"
    boundary = plan.config.scheduler_block_size
    if cacheable and boundary >= plan.max_model_len:
        yield (
            f"no request can hit: blocks of all groups end together every {boundary:,} tokens, and the longest "
            f"request has {plan.max_model_len:,}"
        )
    elif any(group.spec.state for group in cacheable) and boundary > max_batched_tokens:
        yield (
            f"states are kept every {boundary:,} tokens, but a step reads at most {max_batched_tokens:,}: most of "
            "them lie where no other prompt ends a step"
        )


def all_full(specs: Mapping[str, KVCacheSpec], plan: CachePlan) -> CachePlan | None:
    """The plan of the same model with full attention in all layers; None for a model without attention.

    A layer with a window or a chunk keeps its heads. A layer with a state gets those of the model's largest
    attention layer.
    """
    tokens = [spec for spec in specs.values() if hasattr(spec, "num_kv_heads")]
    if not tokens:
        return None
    widest = max(tokens, key=lambda spec: spec.unpadded_page_bytes / spec.block_size)
    twin = {layer: _full(spec if hasattr(spec, "num_kv_heads") else widest) for layer, spec in specs.items()}
    return plan_cache(
        twin,
        num_blocks=MOST_TOKENS,
        max_model_len=plan.max_model_len,
        max_in_flight_tokens=plan.max_in_flight_tokens,
    )


def _full(spec: Any) -> KVCacheSpec:
    if spec.prefix:
        found: KVCacheSpec = spec
        return found
    return FullAttentionSpec(
        block_size=spec.block_size,
        num_kv_heads=spec.num_kv_heads,
        head_size=spec.head_size,
        head_size_v=spec.head_size_v,
        dtype=spec.dtype,
    )
