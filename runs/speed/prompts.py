"""One long prompt: admitted cold, freed, found again, and missed by one of its groups."""

from __future__ import annotations

from collections.abc import Iterator
from time import process_time
from typing import Any

from runs.speed.side import ManagerSide, Run, repeated, settle_heap
from runs.speed.trace import block_keys
from runs.speed.works import BLOCK, FULL, STATE, Group, Size

WINDOW = Group("window", 1024)


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
    """Different prompts of ``count`` blocks, admitted cold, then freed; then each found whole by a resend."""
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
    """The full group has the whole prompt, the other group nothing of it: its search must find that out.

    ``first`` is a request's first look-up, ``again`` the second, as for a request that waits.
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
