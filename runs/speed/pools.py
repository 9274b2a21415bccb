"""Pools of different sizes: the time to build one, the memory of an empty one, and a prompt in a full one."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time
from typing import Any

from runs.speed.prompts import admit
from runs.speed.side import ManagerSide, Run, repeated, settle_heap
from runs.speed.works import BLOCK, FULL, MODELS, Size

PROMPT_BLOCKS = 1000
LEAST_GROWTH = 1 << 20
"""Bytes. Less than this is chance: how full the allocator's pages happen to be."""


def full_pool(side: ManagerSide, size: Size, blocks: int) -> Iterator[Run]:
    """Build a pool, fill it with prompts that were freed again, then admit and free others: each of their
    blocks evicts one."""

    def run() -> Run:
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
        return Run(dict(zip(units, times, strict=True)), units, hits)

    return repeated(run)


def _request(side: ManagerSide, number: int) -> Any:
    first = number * PROMPT_BLOCKS
    keys = [(first + block).to_bytes(32, "little") for block in range(PROMPT_BLOCKS)]
    return side.request(f"r{number}", PROMPT_BLOCKS * BLOCK, keys)


def empty_pool(side: ManagerSide, model: str, size: Size) -> Iterator[Run]:
    """What a cache manager of ``size.pool_blocks`` blocks adds to the memory of its process.

    ``resident`` are the bytes in physical memory, ``promised`` those that Python and NumPy allocate,
    untouched pages included.
    """

    side.cache(MODELS[model], 2)  # what is imported on first use is no part of a pool

    def run() -> Run:
        settle_heap()
        resident = _in_a_child(lambda: _resident_growth(side, model, size))
        tracemalloc.start()
        cache = side.cache(MODELS[model], size.pool_blocks)
        promised, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        del cache
        return Run(
            {"resident": resident, "promised": promised}, dict.fromkeys(("resident", "promised"), size.pool_blocks)
        )

    return repeated(run)


def _in_a_child(measure: Callable[[], int]) -> int:
    """The answer of a forked process, which starts with a heap that holds no freed cache manager."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, str(measure()).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        found = int(answer.read())
    os.waitpid(child, 0)
    return found


def _resident_growth(side: ManagerSide, model: str, size: Size) -> int:
    before = _resident()
    cache = side.cache(MODELS[model], size.pool_blocks)
    grown = _resident() - before
    del cache
    return max(grown, LEAST_GROWTH)


def _resident() -> int:
    """Data alone: code counts in a forked process when it first runs, which says nothing of a pool."""
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].removesuffix("kB")) * 1024
