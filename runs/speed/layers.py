"""Where our own time goes: a profile of a work, summed up by the layers of the cache manager."""

from __future__ import annotations

import cProfile
import pstats
from collections import Counter

from runs.speed.side import Side
from runs.speed.works import Size

LAYERS = (
    ("kvhybrid/cache/manager.py", "cache manager: what may be allocated"),
    ("kvhybrid/cache/coordinators/", "coordinator: the groups together"),
    ("managers/prefix/", "prefix index: keys to numbers"),
    ("managers/pool/", "block pool and its keys"),
    ("managers/eviction/", "order of reuse"),
    ("managers/", "single-type managers: tables, searches, keys"),
    ("kvhybrid/", "scheduler, statistics, causes, events, requests"),
)
"""The first that a file's path contains is its layer. Numpy, the standard library and built-ins count for the
layer that called them; what the benchmark itself does and calls is left out."""


def by_layer(side: Side, work: str, size: Size) -> dict[str, float]:
    """The share of each layer in the time of one run. A profiler makes small calls look dearer than they are."""
    runs = side.open(work, size)
    next(runs)
    profile = cProfile.Profile()
    profile.enable()
    next(runs)
    profile.disable()
    spent: Counter[str] = Counter()
    for (path, _, _), (_, _, own, _, callers) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if layer := _layer(path):
            spent[layer] += own
            continue
        for (caller, _, _), (_, _, part, _) in callers.items():
            if layer := _layer(caller):
                spent[layer] += part
    total = sum(spent.values())
    return {layer: seconds / total for layer, seconds in spent.most_common()}


def _layer(path: str) -> str | None:
    return next((layer for part, layer in LAYERS if part in path), None)
