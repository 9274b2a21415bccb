"""Pools of different sizes: what building one takes, what an empty one weighs, and a prompt in a full one."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from time import process_time
from typing import Any

from runs.speed.prompts import admit
from runs.speed.side import ManagerSide, Run, settle_heap
from runs.speed.works import BLOCK, FULL, MODELS, Size

PROMPT_BLOCKS = 1000


def full_pool(side: ManagerSide, size: Size, blocks: int) -> Iterator[Run]:
    """Build a pool, fill it with prompts that nobody holds any more, then admit and free others: each of their
    blocks evicts one."""
    while True:
        settle_heap()
        began = process_time()
        cache = side.cache((FULL,), blocks)
        times = [process_time() - began]
        filling = -(-blocks // PROMPT_BLOCKS)
        for number in range(filling):
            request = _request(side, number)
            admit(side, cache, request)
            cache.free(request)
        requests = [_request(side, filling + number) for number in range(size.repeats)]
        settle_heap()
        began = process_time()
        hits = []
        for request in requests:
            hits.append(admit(side, cache, request)[0])
            cache.free(request)
        times.append(process_time() - began)
        units = {"build": blocks, "prompt": size.repeats * PROMPT_BLOCKS}
        yield Run(dict(zip(units, times, strict=True)), units, hits)
        del cache


def _request(side: ManagerSide, number: int) -> Any:
    first = number * PROMPT_BLOCKS
    keys = [(first + block).to_bytes(32, "little") for block in range(PROMPT_BLOCKS)]
    return side.request(f"r{number}", PROMPT_BLOCKS * BLOCK, keys)


def empty_pool(side: ManagerSide, model: str, size: Size) -> Iterator[Run]:
    """The bytes that Python and numpy hand out for a cache manager of ``size.pool_blocks`` blocks."""
    while True:
        settle_heap()
        tracemalloc.start()
        cache = side.cache(MODELS[model], size.pool_blocks)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        del cache
        yield Run({"bytes": taken}, {"bytes": size.pool_blocks})
