"""Decode steps: a batch of requests, each grown by one token a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import process_time

from runs.speed.prompts import admit
from runs.speed.side import ManagerSide, Run, repeated, settle_heap
from runs.speed.trace import block_keys
from runs.speed.works import BLOCK, Group, Size

PROMPT_TOKENS = 2048
STEPS = 64
"""In one run: every request fills four blocks."""


def decode(side: ManagerSide, groups: Sequence[Group], size: Size) -> Iterator[Run]:
    """``size.batch`` requests, whose prompts differ in length, so that they do not fill their blocks at once."""
    prompts = [PROMPT_TOKENS + i % BLOCK for i in range(size.batch)]
    most = (PROMPT_TOKENS + STEPS) // BLOCK + 2
    keys = [block_keys(f"decode{i}", most) for i in range(size.batch)]

    def run() -> Run:
        cache = side.cache(groups, size.batch * most * len(groups) + 1)
        requests = [side.request(f"r{i}", length, keys[i][: length // BLOCK]) for i, length in enumerate(prompts)]
        for request in requests:
            admit(side, cache, request)
        pairs = list(zip(requests, keys, strict=True))
        allocate, refused = cache.allocate_slots, 0
        settle_heap()
        began = process_time()
        for _ in range(STEPS):
            cache.new_step_starts()
            for request, own in pairs:
                request.num_tokens = grown = request.num_tokens + 1
                if not grown % BLOCK:
                    request.block_hashes.append(own[grown // BLOCK - 1])
                refused += allocate(request, 1) is None
                request.num_computed_tokens = grown
        seconds = process_time() - began
        return Run({"step": seconds}, {"step": STEPS * size.batch}, [refused])

    return repeated(run)
