"""What a block costs at the least: its key and the passes over the pool's arrays, without anything around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import process_time
from typing import Any

import numpy as np

from kvhybrid.managers.kernel import extend_keys
from kvhybrid.managers.pool.block_pool import BlockPool
from runs.speed.works import BLOCK

BLOCKS = 60_000
"""Of the pool, as in the works (a)."""
PROMPT = 1_000
"""Blocks that are taken at a time."""
ROUNDS = 200


def floors() -> Mapping[str, float]:
    """Microseconds for one block."""
    tokens = list(range(BLOCK * PROMPT))
    return {
        "hashing: one SHA-256 of a key and 16 tokens": _each(lambda: extend_keys([], tokens, BLOCK, bytes(32))),
        "array passes: evicted, handed out, keyed, given back": _each(_lives(), rounds=2 * ROUNDS),
    }


def _lives() -> Callable[[], Any]:
    """Prompts that pass through a full pool, so that each of their blocks evicts one."""
    pool = BlockPool(BLOCKS, 1)
    pool.keys.grow(2 * BLOCKS)
    first = iter(range(10**9))

    def live() -> None:
        numbers = 1 + (next(first) * PROMPT + np.arange(PROMPT, dtype=np.int32)) % (2 * BLOCKS - 1)
        ids = pool.take(PROMPT)
        pool.keys.register(0, ids, numbers)
        pool.release(ids[::-1])

    for _ in range(2 * BLOCKS // PROMPT):
        live()
    return live


def _each(call: Callable[[], Any], rounds: int = ROUNDS) -> float:
    times = []
    for _ in range(3):
        began = process_time()
        for _ in range(rounds):
            call()
        times.append(process_time() - began)
    return 1e6 * min(times) / rounds / PROMPT
