"""Computes a cache plan from layer specs and memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kvhybrid.cache.config import KVCacheConfig
from kvhybrid.planning.error import PlanningError
from kvhybrid.planning.grouping import group_layers
from kvhybrid.planning.pages import unify_pages
from kvhybrid.planning.plan import CachePlan
from kvhybrid.planning.sizing import longest_model_len, request_blocks
from kvhybrid.specs import KVCacheSpec


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
) -> CachePlan:
    """Plan the cache of a model with ``layer_specs``, in the order of its layers.

    The pool has ``num_blocks`` blocks, or as many as fit in ``memory_bytes``; exactly one of the two is given.
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
    specs = unify_pages(layer_specs, page_multiple=page_multiple, max_model_len=max_model_len)
    groups = group_layers(specs, draft_layers)
    tensors = tuple(specs[layer].page_bytes for layer in max((group.layers for group in groups), key=len))
    config = KVCacheConfig(
        groups, _pool_size(memory_bytes, num_blocks, sum(tensors)), hash_block_size, context_parallel
    )
    blocks = request_blocks(config, max_model_len, max_in_flight_tokens, max_encoder_tokens)
    plan = CachePlan(config, specs, tensors, blocks, max_model_len, max_in_flight_tokens)
    _check_fit(plan, max_encoder_tokens)
    return plan


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


def _pool_size(memory_bytes: int | None, num_blocks: int | None, bytes_per_block: int) -> int:
    """Blocks of the pool, at least the null block and one more."""
    if memory_bytes is not None and num_blocks is None:
        blocks, offered = memory_bytes // bytes_per_block, f"{memory_bytes} bytes"
    elif num_blocks is not None and memory_bytes is None:
        blocks, offered = num_blocks, f"num_blocks = {num_blocks}"
    else:
        raise PlanningError("give memory_bytes or num_blocks: exactly one of the two")
    if blocks < 2:
        raise PlanningError(
            f"no memory for the cache: {offered} has no room for a block in addition to the null block; "
            f"a block takes {bytes_per_block} bytes"
        )
    return blocks


def _check_fit(plan: CachePlan, max_encoder_tokens: int | None) -> None:
    needed, usable = sum(plan.blocks_per_request), plan.num_blocks - 1
    if needed <= usable:
        return
    longest = longest_model_len(plan.config, plan.max_model_len, plan.max_in_flight_tokens, max_encoder_tokens)
    shorter = f"Lower max_model_len to {longest} (estimated)" if longest else "No shorter request fits"
    raise PlanningError(
        f"one request of {plan.max_model_len} tokens needs {needed} blocks and the null block; "
        f"the pool has {plan.num_blocks}.\n"
        f"{shorter}, or give the cache {(needed + 1) * plan.bytes_per_block} bytes (num_blocks = {needed + 1})."
    )
