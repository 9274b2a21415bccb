"""A trace through the side's own scheduler, on a cache that lives on: every run is the next part of the trace."""

from __future__ import annotations

from collections.abc import Iterator
from time import process_time

from runs.speed.side import ManagerSide, Run, settle_heap
from runs.speed.trace import read_trace
from runs.speed.works import MODELS, Size


def scheduled(side: ManagerSide, model: str, size: Size) -> Iterator[Run]:
    """Up to ``size.live`` requests at the same time and ``size.budget`` tokens in a step.

    The requests of a part are queued before the clock starts; it stops when the last of them is done."""
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
