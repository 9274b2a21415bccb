"""Every work that a cache manager can do, by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from runs.speed.decoding import decode
from runs.speed.hashing import hash_prompt, hash_trace
from runs.speed.pools import empty_pool, full_pool
from runs.speed.prompts import missed_prompt, whole_prompt, worst_order
from runs.speed.scheduled import scheduled
from runs.speed.side import Run
from runs.speed.traffic import traffic
from runs.speed.works import MODELS

CUTS = (2048, 4096, 8192)
"""Blocks of the prompts of the worst order."""
PROMPTS = (512, 2048, 8192, 32_768)
"""Blocks of the prompts whose cost must be a straight line."""
POOLS = (10_000, 100_000, 1_000_000, 10_000_000)
"""Blocks of the pools on whose size the cost must not depend."""

WORKS: dict[str, Callable[..., Iterator[Run]]] = {
    **{f"a:{model}": partial(traffic, model=model) for model in MODELS},
    "a:prompts": partial(traffic, model="llama", decodes=False),
    "a:hashing": hash_trace,
    "b:hashing": hash_prompt,
    "b:prompt": whole_prompt,
    "b:miss-window": partial(missed_prompt, kind="window"),
    "b:miss-state": partial(missed_prompt, kind="state"),
    "c:1": partial(decode, groups=MODELS["llama"]),
    "c:7": partial(decode, groups=MODELS["gemma3"]),
    **{f"d:{blocks}": partial(worst_order, blocks=blocks) for blocks in CUTS},
    **{f"e:prompt:{blocks}": partial(whole_prompt, count=blocks) for blocks in PROMPTS},
    **{f"e:pool:{blocks}": partial(full_pool, blocks=blocks) for blocks in POOLS},
    "scheduler:gemma3": partial(scheduled, model="gemma3"),
    "memory": partial(empty_pool, model="gemma3"),
}
