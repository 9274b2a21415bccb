"""Prompts one by one: hashed, admitted cold, found, missed by one of the groups, freed, and decoded in a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import process_time
from typing import Any

from runs.speed.side import ManagerSide, Run, repeated, settle_heap
from runs.speed.trace import block_keys, read_trace
from runs.speed.works import BLOCK, FULL, STATE, Group, Size

WINDOW = Group("window", 1024)
DECODED_PROMPT = 2048
"""Tokens, at least."""
DECODE_STEPS = 64
"""In one run: every request fills four blocks."""


def admit(side: ManagerSide, cache: Any, request: Any) -> tuple[int, int]:
    """Look ``request`` up and allocate all of it in one step. Returns the hit and the junction."""
    cache.new_step_starts()
    blocks, hit, junction = cache.get_computed_blocks(request)
    granted = cache.allocate_slots(request, request.num_tokens - hit, hit, blocks)
    assert granted is not None, "the pool is made large enough"
    request.num_computed_tokens = request.num_tokens
    request.status = side.running
    return hit, junction


def whole_prompt(side: ManagerSide, size: Size, count: int = 0) -> Iterator[Run]:
    """Different prompts of ``count`` blocks: admitted cold, freed, then each found whole by a resend."""
    count, repeats = count or size.prompt_blocks, size.repeats
    tokens = count * BLOCK + 1  # the last token is computed anyway, so that every block can be a hit
    keys = [block_keys(f"prompt{i}", count) for i in range(repeats)]

    def run() -> Run:
        cache = side.cache((FULL,), repeats * (count + 1) + 1)
        requests = [side.request(f"r{i}", tokens, k) for i, k in enumerate(keys)]
        resent = [side.request(f"again{i}", tokens, k) for i, k in enumerate(keys)]
        settle_heap()
        times = [process_time()]
        hits = [admit(side, cache, request) for request in requests]
        times.append(process_time())
        for request in requests:
            cache.free(request)
        times.append(process_time())
        hits += [cache.get_computed_blocks(request)[1:] for request in resent]
        times.append(process_time())
        seconds = {part: times[i + 1] - times[i] for i, part in enumerate(("admit", "free", "hit"))}
        return Run(seconds, dict.fromkeys(seconds, repeats * count), [list(map(int, hit)) for hit in hits])

    return repeated(run)


def missed_prompt(side: ManagerSide, kind: str, size: Size) -> Iterator[Run]:
    """The full group has the whole prompt and the other group nothing of it, which its search must find out.

    ``first`` is a request's first look-up, ``again`` its second, as for a request that waits.
    """
    count, repeats = size.prompt_blocks, size.repeats
    tokens, keys = count * BLOCK + 1, block_keys("prompt0", count)
    cache = side.cache((FULL, WINDOW if kind == "window" else STATE), 2 * count + 8)
    request = side.request("r", tokens, keys)
    admit(side, cache, request)
    lost = {int(block) for block in cache.get_block_ids("r")[1] if block}
    cache.free(request)
    cache.evict_blocks(lost)

    def run() -> Run:
        waiting = [side.request(f"w{i}", tokens, keys) for i in range(repeats)]
        settle_heap()
        cache.new_step_starts()
        times = [process_time()]
        found = [cache.get_computed_blocks(request)[1:] for request in waiting]
        times.append(process_time())
        for request in waiting:
            cache.get_computed_blocks(request)
        times.append(process_time())
        seconds = {"first": times[1] - times[0], "again": times[2] - times[1]}
        return Run(seconds, dict.fromkeys(seconds, repeats), [list(map(int, hit)) for hit in found])

    return repeated(run)


def worst_order(side: ManagerSide, size: Size, blocks: int) -> Iterator[Run]:
    """Two window groups that need one block each and have every other block, never the same: each cuts the
    candidate of the other by one block, all the way down."""
    count, repeats = blocks, size.repeats
    tokens, keys = count * BLOCK + 1, block_keys("prompt0", count)
    cache = side.cache((FULL, Group("window", 16), Group("window", 17)), 3 * count + 8)
    request = side.request("r", tokens, keys)
    admit(side, cache, request)
    rows = [[int(block) for block in row] for row in cache.get_block_ids("r")]
    cache.free(request)
    cache.evict_blocks({*rows[1][0:count:2], *rows[2][1:count:2]} - {0})

    def run() -> Run:
        waiting = [side.request(f"w{i}", tokens, keys) for i in range(repeats)]
        settle_heap()
        began = process_time()
        found = [cache.get_computed_blocks(request)[1:] for request in waiting]
        seconds = process_time() - began
        return Run({"hit": seconds}, {"hit": repeats}, [list(map(int, hit)) for hit in found])

    return repeated(run)


def decode(side: ManagerSide, groups: Sequence[Group], size: Size) -> Iterator[Run]:
    """``size.batch`` requests, each grown by one token a step. Their prompts differ in length, so that they do not
    all fill a block in the same step."""
    prompts = [DECODED_PROMPT + i % BLOCK for i in range(size.batch)]
    most = (DECODED_PROMPT + DECODE_STEPS) // BLOCK + 2
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
        for _ in range(DECODE_STEPS):
            cache.new_step_starts()
            for request, own in pairs:
                request.num_tokens = grown = request.num_tokens + 1
                if not grown % BLOCK:
                    request.block_hashes.append(own[grown // BLOCK - 1])
                refused += allocate(request, 1) is None
                request.num_computed_tokens = grown
        seconds = process_time() - began
        return Run({"step": seconds}, {"step": DECODE_STEPS * size.batch}, [refused])

    return repeated(run)


def hash_prompt(side: ManagerSide, size: Size) -> Iterator[Run]:
    """One prompt of ``size.prompt_blocks`` blocks."""
    tokens = [(7 * i) % 128_000 for i in range(size.prompt_blocks * BLOCK)]
    return _hashed(side, [tokens] * size.repeats)


def hash_trace(side: ManagerSide, size: Size) -> Iterator[Run]:
    """All prompts of the trace, each from its first token on."""
    return _hashed(side, [prompt.tokens() for prompt in read_trace(size.trace, size.requests)])


def _hashed(side: ManagerSide, prompts: list[list[int]]) -> Iterator[Run]:
    hashed = side.hasher()

    def run() -> Run:
        requests = [side.token_request(f"r{i}", tokens) for i, tokens in enumerate(prompts)]
        settle_heap()
        began = process_time()
        for request in requests:
            hashed(request)
        seconds = process_time() - began
        counts = [len(request.block_hashes) for request in requests]
        return Run({"hash": seconds}, {"hash": sum(counts)}, counts)

    return repeated(run)
