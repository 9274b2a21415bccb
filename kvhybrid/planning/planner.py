"""Computes a cache plan from layer specs and memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TypeAlias

from kvhybrid.cache.config import KVCacheConfig
from kvhybrid.planning.error import PlanningError
from kvhybrid.planning.layouts import layouts
from kvhybrid.planning.layouts.base import Arrangement, MemoryLayout
from kvhybrid.planning.layouts.padded import PaddedLayout
from kvhybrid.planning.plan import CachePlan
from kvhybrid.planning.sizing import longest_in, request_blocks
from kvhybrid.plugins import Choice
from kvhybrid.specs import KVCacheSpec

LayoutChoice: TypeAlias = MemoryLayout | Choice
"""A layout, or a choice that creates one without arguments."""


def plan_cache(
    layer_specs: Mapping[str, KVCacheSpec],
    *,
    memory_bytes: int | None = None,
    num_blocks: int | None = None,
    max_model_len: int,
    max_in_flight_tokens: int,
    page_multiple: int = 16,
    context_parallel: int = 1,
    draft_layers: Collection[str] = (),
    hash_block_size: int | None = None,
    max_encoder_tokens: int | None = None,
    most_requests: int | None = None,
    layout: LayoutChoice = "padded",
) -> CachePlan:
    """Plan the cache of a model with ``layer_specs``, in the order of its layers.

    The pool takes ``memory_bytes``, or the bytes of ``num_blocks`` blocks of the padded layout, so that layouts
    are compared at equal memory; exactly one of the two is given. It takes no more than ``most_requests`` requests
    of ``max_model_len`` tokens need. ``layout`` is a registered memory layout, ``module:Class``, or an object.
    ``page_multiple`` is the number of tokens that the attention kernel needs the block size to be a multiple of;
    it is used only if planning has to raise a block size to fit a state. Groups of ``draft_layers`` are marked as
    read by a draft model. ``hash_block_size`` is the number of tokens per prefix key. ``max_encoder_tokens`` sizes
    the groups of encoder tokens; by default it is ``max_model_len``.

    Raises `PlanningError` if the arguments contradict each other, if the memory has no room for a block in
    addition to the null block, or if one request of ``max_model_len`` tokens does not fit; the message then has
    the longest length that does.
    """
    _check_limits(
        max_model_len=max_model_len,
        max_in_flight_tokens=max_in_flight_tokens,
        page_multiple=page_multiple,
        context_parallel=context_parallel,
        max_encoder_tokens=max_encoder_tokens,
    )
    _check_layers(layer_specs, draft_layers)
    chosen = as_layout(layout)
    arranged = chosen.arrange(
        layer_specs, page_multiple=page_multiple, max_model_len=max_model_len, draft_layers=draft_layers
    )
    config = KVCacheConfig(arranged.groups, 1, hash_block_size, context_parallel)
    blocks = request_blocks(config, max_model_len, max_in_flight_tokens, max_encoder_tokens)
    memory = _memory(memory_bytes, num_blocks, padded_block_bytes(layer_specs, page_multiple, max_model_len))
    if most_requests is not None:
        memory = min(memory, chosen.bytes_for(arranged, blocks, most_requests))
    division = chosen.divide(arranged, memory, blocks)
    plan = CachePlan(
        replace(config, num_blocks=division.num_blocks, pools=division.pools),
        arranged.specs,
        arranged.block_bytes,
        division,
        blocks,
        max_model_len,
        max_in_flight_tokens,
    )
    if not division.has_room(blocks):
        raise PlanningError(_too_long(plan, chosen, arranged, memory, max_encoder_tokens))
    return plan


def longest_planned(
    layer_specs: Mapping[str, KVCacheSpec],
    *,
    memory_bytes: int,
    max_model_len: int,
    max_in_flight_tokens: int,
    page_multiple: int = 16,
    layout: LayoutChoice = "padded",
) -> int:
    """The longest request, at most ``max_model_len`` tokens, for which `plan_cache` has enough memory; 0 for
    none."""
    chosen = as_layout(layout)
    arranged = chosen.arrange(layer_specs, page_multiple=page_multiple, max_model_len=max_model_len)
    config = KVCacheConfig(arranged.groups, 1)
    return longest_in(chosen, arranged, config, memory_bytes, max_model_len, max_in_flight_tokens, None)


def as_layout(layout: LayoutChoice) -> MemoryLayout:
    """The layout itself: a name or ``module:Class`` is looked up, with its default parameters."""
    return layout if isinstance(layout, MemoryLayout) else layouts.maker(layout)()


def padded_block_bytes(layer_specs: Mapping[str, KVCacheSpec], page_multiple: int, max_model_len: int) -> int:
    """Bytes of a block in the padded layout, the unit in which a pool is given a number of blocks."""
    arranged = PaddedLayout().arrange(layer_specs, page_multiple=page_multiple, max_model_len=max_model_len)
    return arranged.block_bytes[0]


def _check_limits(**limits: int | None) -> None:
    for name, value in limits.items():
        if value is not None and value < 1:
            raise PlanningError(f"{name} must be at least 1, found {value}")


def _check_layers(layer_specs: Mapping[str, KVCacheSpec], draft_layers: Collection[str]) -> None:
    if not layer_specs:
        raise PlanningError("no layer keeps a cache, so there is nothing to plan")
    unknown = sorted(set(draft_layers) - set(layer_specs))
    if unknown:
        raise PlanningError(f"draft_layers names layers without a spec: {', '.join(unknown)}")


def _memory(memory_bytes: int | None, num_blocks: int | None, bytes_per_block: int) -> int:
    """Bytes of the pool."""
    if memory_bytes is not None and num_blocks is None:
        return memory_bytes
    if num_blocks is None or memory_bytes is not None:
        raise PlanningError("give memory_bytes or num_blocks: exactly one of the two")
    if num_blocks < 2:
        raise PlanningError(
            f"no memory for the cache: num_blocks = {num_blocks} has no room for a block in addition to the null "
            f"block; a block takes {bytes_per_block} bytes"
        )
    return num_blocks * bytes_per_block


def _too_long(
    plan: CachePlan,
    layout: MemoryLayout,
    arranged: Arrangement,
    memory: int,
    max_encoder_tokens: int | None,
) -> str:
    """The message for a request of ``plan.max_model_len`` tokens that does not fit."""
    limit, in_flight = plan.max_model_len, plan.max_in_flight_tokens
    longest = longest_in(layout, arranged, plan.config, memory, limit, in_flight, max_encoder_tokens)
    shorter = f"Lower max_model_len to {longest} (estimated)" if longest else "No shorter request fits"
    needed = layout.bytes_for(arranged, plan.blocks_per_request)
    if plan.config.pools is None:
        blocks = needed // plan.bytes_per_block
        return (
            f"one request of {limit} tokens needs {blocks - 1} blocks and the null block; "
            f"the pool has {plan.num_blocks}.\n"
            f"{shorter}, or give the cache {needed} bytes (num_blocks = {blocks})."
        )
    return (
        f"one request of {limit} tokens needs {needed} bytes in this layout; the pool has {memory}.\n"
        f"{shorter}, or give the cache {needed} bytes."
    )
