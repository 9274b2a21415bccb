"""A trace through our cache manager: the newest requests stay live, the oldest is freed if the pool is short."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.managers.prefix.key_chain import KeyChain
from kvhybrid.plugins import Choice
from runs.speed.ours import KeyedRequest, cache_config
from runs.speed.trace import Prompt
from runs.speed.traffic import PREFILL_TOKENS
from runs.speed.works import BLOCK, FULL, MAX_MODEL_LEN, MODELS, STATE, Group

LIVE = 32
"""Requests that hold their blocks at the same time."""
GROUPS = {
    "gemma3": "Gemma-3-27B, 1 full + 6 windows",
    "jamba": "Jamba, 1 full + 7 states",
    "jamba2": "Jamba, 1 full + 1 state",
}
"""What the models are called in the table."""


def groups_of(model: str) -> tuple[Group, ...]:
    return (FULL, STATE) if model == "jamba2" else MODELS[model]


def tokens_hit(prompts: Sequence[Prompt], model: str, blocks: int, order: Choice) -> list[int]:
    """Replay ``prompts`` one after another, without decode steps. Returns the tokens hit by each of them."""
    config = cache_config(groups_of(model), blocks)
    cache = KVCacheManager(config, max_model_len=MAX_MODEL_LEN, eviction=order)
    live: deque[Request] = deque()
    hits: list[int] = []
    for prompt in prompts:
        request = KeyedRequest(prompt.request_id, prompt.num_tokens, ())
        request.block_hashes = KeyChain(prompt.keys)
        hits.append(_prefill(cache, request, live))
        live.append(request)
        if len(live) > LIVE:
            cache.free(live.popleft())
    return hits


def _prefill(cache: KVCacheManager, request: KeyedRequest, live: deque[Request]) -> int:
    """Compute a prompt in chunks, with room for a block after the last. Returns the tokens hit."""
    length = request.num_tokens
    cache.new_step_starts()
    while True:
        blocks, hit, junction = cache.get_computed_blocks(request)
        request.shared_prefix_boundary = junction
        stops = _stops(hit, junction, length)
        ahead = BLOCK if len(stops) == 1 else 0
        admitted = cache.allocate_slots(request, stops[0] - hit, hit, blocks, num_lookahead_tokens=ahead)
        if admitted is not None:
            break
        cache.free(live.popleft())
    request.num_computed_tokens = stops[0]
    request.status = RequestStatus.RUNNING
    for stop in stops[1:]:
        ahead = BLOCK if stop == length else 0
        while (
            cache.allocate_slots(request, stop - request.num_computed_tokens, num_lookahead_tokens=ahead) is None
        ):
            cache.free(live.popleft())
        request.num_computed_tokens = stop
    return hit


def _stops(hit: int, junction: int, length: int) -> list[int]:
    """Where the steps of a prefill end: every `PREFILL_TOKENS`, at the junction, at the last block boundary below
    the prompt's end, and at the end."""
    last = (length - 1) // BLOCK * BLOCK
    wanted = {*range(hit + PREFILL_TOKENS, last, PREFILL_TOKENS), junction // BLOCK * BLOCK, last, length}
    return sorted(stop for stop in wanted if stop > hit)
