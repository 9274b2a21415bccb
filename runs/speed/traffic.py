"""The main works: a trace through a cache manager, request by request, and through the side's own scheduler.

As a scheduler would, the loop looks every request up, admits it, allocates its prompt and then some decode steps
of one token each. The newest requests stay live; older ones are freed. If the pool is short, the oldest live
request is freed and the call is made again. One loop drives every side: the public calls are the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from time import process_time
from typing import Any

from runs.speed.side import ManagerSide, Run, repeated, settle_heap
from runs.speed.trace import Prompt, block_keys, read_trace
from runs.speed.works import BLOCK, MODELS, Size

PREFILL_TOKENS = 8192
"""The longest step of a prefill where states are kept."""


def traffic(side: ManagerSide, model: str, size: Size, decodes: bool = True) -> Iterator[Run]:
    """Each run is the whole trace on a fresh cache. The requests come with their keys: hashing does not count.

    Without ``decodes`` it is what SGLang's trees do: prompts with room for their output and no decode steps.
    """
    groups = MODELS[model]
    chunked = any(group.kind == "state" for group in groups)
    prompts = read_trace(size.trace, size.requests)

    def run() -> Run:
        cache = side.cache(groups, size.blocks)
        requests = [side.request(p.request_id, p.num_tokens, p.keys) for p in prompts]
        server = Server(side, cache, size, chunked)
        serve = server.serve if decodes else server.serve_prompt
        settle_heap()
        began = process_time()
        for prompt, request in zip(prompts, requests, strict=True):
            serve(prompt, request)
        evictions = side.look(cache)
        seconds = process_time() - began
        return Run({"all": seconds}, {"all": sum(len(p.keys) for p in prompts)}, server.decisions, evictions)

    return repeated(run)


class Server:
    """Serves one request after another from ``cache``."""

    def __init__(self, side: ManagerSide, cache: Any, size: Size, chunked: bool) -> None:
        self.cache = cache
        self.decisions: list[tuple[int, int, int]] = []
        """For each request: tokens hit, the junction, refused calls."""
        self._running = side.running
        self._size = size
        self._chunked = chunked
        self._after = side.after_request(cache)
        self._live: deque[Any] = deque()
        self._refusals = 0

    def serve(self, prompt: Prompt, request: Any) -> None:
        cache, allocate, length = self.cache, self.cache.allocate_slots, prompt.num_tokens
        self._refusals = 0
        cache.new_step_starts()
        while True:
            blocks, hit, junction = cache.get_computed_blocks(request)
            request.shared_prefix_boundary = junction
            stops = self._stops(hit, junction, length) if self._chunked else (length,)
            if allocate(request, stops[0] - hit, hit, blocks) is not None:
                break
            self._make_room()
        request.num_computed_tokens = stops[0]
        request.status = self._running
        for stop in stops[1:]:
            self._grow(request, stop - request.num_computed_tokens)
            request.num_computed_tokens = stop
        self._decode(prompt, request)
        self._served(request, hit, junction)
        if self._after is not None:
            self._after()

    def serve_prompt(self, prompt: Prompt, request: Any) -> None:
        cache, length, room = self.cache, prompt.num_tokens, self._size.decode_steps
        self._refusals = 0
        cache.new_step_starts()
        while True:
            blocks, hit, junction = cache.get_computed_blocks(request)
            if cache.allocate_slots(request, length - hit, hit, blocks, num_lookahead_tokens=room) is not None:
                break
            self._make_room()
        self._served(request, hit, junction)

    def _served(self, request: Any, hit: int, junction: int) -> None:
        self.decisions.append((hit, junction, self._refusals))
        self._live.append(request)
        if len(self._live) > self._size.live:
            self.cache.free(self._live.popleft())

    def _decode(self, prompt: Prompt, request: Any) -> None:
        allocate, keys = self.cache.allocate_slots, request.block_hashes
        fresh = iter(block_keys(prompt.request_id, self._size.decode_steps // BLOCK + 1))
        for _ in range(self._size.decode_steps):
            request.num_tokens += 1
            if not request.num_tokens % BLOCK:
                keys.append(next(fresh))
            while allocate(request, 1) is None:
                self._make_room()
            request.num_computed_tokens += 1

    def _grow(self, request: Any, num_tokens: int) -> None:
        while self.cache.allocate_slots(request, num_tokens) is None:
            self._make_room()

    def _make_room(self) -> None:
        self._refusals += 1
        self.cache.free(self._live.popleft())

    def _stops(self, hit: int, junction: int, length: int) -> Sequence[int]:
        """Where the steps of a prefill end, so that states are kept on block boundaries: every `PREFILL_TOKENS`,
        at the junction, at the last boundary below the prompt's end, and at the end."""
        last = (length - 1) // BLOCK * BLOCK
        wanted = {*range(hit + PREFILL_TOKENS, last, PREFILL_TOKENS), junction // BLOCK * BLOCK, last, length}
        return sorted(stop for stop in wanted if stop > hit)


def scheduled(side: ManagerSide, model: str, size: Size) -> Iterator[Run]:
    """Each run is the next part of the trace, on one scheduler whose cache lives on: up to ``size.live`` requests
    at a time and ``size.budget`` tokens a step. All requests of a part are queued before the clock starts."""
    scheduler = side.scheduler(MODELS[model], size.blocks, size.budget, size.live)
    prompts = read_trace(size.trace, size.requests)
    for part in range(size.parts):
        mine = prompts[part * len(prompts) // size.parts : (part + 1) * len(prompts) // size.parts]
        for prompt in mine:
            scheduler.add(prompt)
        settle_heap()
        began = process_time()
        scheduler.run()
        seconds = process_time() - began
        hits = scheduler.hits()
        yield Run({"request": seconds}, {"request": len(mine)}, [hits[p.request_id] for p in mine])
