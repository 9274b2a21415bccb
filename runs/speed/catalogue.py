"""Every work that a cache manager can do, by name, and the side that does them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from runs.speed.pools import empty_pool, full_pool
from runs.speed.prompts import decode, hash_prompt, hash_trace, missed_prompt, whole_prompt, worst_order
from runs.speed.side import ManagerSide, Run
from runs.speed.traffic import scheduled, traffic
from runs.speed.works import MODELS, Size

CUTS = (2048, 4096, 8192)
"""Blocks of the prompts of the worst order."""
PROMPTS = (512, 2048, 8192, 32_768)
"""Blocks of the prompts whose cost must grow linearly."""
POOLS = (10_000, 100_000, 1_000_000, 10_000_000)
"""Blocks of the pools whose size must not change the cost."""

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


class CatalogueSide(ManagerSide):
    """A cache manager under measurement."""

    def open(self, work: str, size: Size) -> Iterator[Run]:
        return WORKS[work](self, size=size)
