"""One work on one side alone: what it takes and, with --profile, in which layers or functions."""

from __future__ import annotations

import argparse
import cProfile
import pstats
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import process_time
from typing import Any

from runs.speed.catalogue import WORKS
from runs.speed.side import Run
from runs.speed.worker import SIDES, make_side
from runs.speed.works import BLOCK, Size

LAYERS = (
    ("kvhybrid/cache/manager.py", "cache manager: what may be allocated"),
    ("kvhybrid/cache/coordinators/", "coordinator: the groups together"),
    ("managers/prefix/", "prefix index: keys to numbers"),
    ("managers/pool/", "block pool and its keys"),
    ("managers/eviction/", "order of reuse"),
    ("managers/", "single-type managers: tables, searches, keys"),
    ("kvhybrid/", "scheduler, statistics, causes, events, requests"),
)
"""The first that a file's path contains is its layer. NumPy, the standard library and built-ins count for the
layer that called them; what the benchmark itself does and calls is left out."""

POOL_BLOCKS = 60_000
"""As in the works (a)."""
PROMPT_BLOCKS = 1_000
FLOOR_ROUNDS = 200


def profile_of(runs: Iterator[Run]) -> pstats.Stats:
    """One run, after one that does not count."""
    next(runs)
    profile = cProfile.Profile()
    profile.enable()
    next(runs)
    profile.disable()
    return pstats.Stats(profile)


def by_layer(profile: pstats.Stats) -> dict[str, float]:
    """The share of each of our layers. A profiler makes short calls look more expensive than they are."""
    spent: Counter[str] = Counter()
    for (path, _, _), (_, _, own, _, callers) in profile.stats.items():  # type: ignore[attr-defined]
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


def floors() -> Mapping[str, float]:
    """The least that a block can cost, in microseconds: its key and the passes over the pool's arrays, alone."""
    from kvhybrid.managers.kernel import extend_keys

    tokens = list(range(BLOCK * PROMPT_BLOCKS))
    return {
        "hashing: one SHA-256 of a key and 16 tokens": _each(lambda: extend_keys([], tokens, BLOCK, bytes(32))),
        "array passes: evicted, allocated, keyed, freed": _each(_lives(), rounds=2 * FLOOR_ROUNDS),
    }


def _lives() -> Callable[[], Any]:
    """Prompts that pass through a full pool, so that each of their blocks evicts one."""
    import numpy as np

    from kvhybrid.managers.pool.block_pool import BlockPool

    pool = BlockPool(POOL_BLOCKS, 1)
    pool.keys.grow(2 * POOL_BLOCKS)
    first = iter(range(10**9))

    def live() -> None:
        numbers = 1 + (next(first) * PROMPT_BLOCKS + np.arange(PROMPT_BLOCKS, dtype=np.int32)) % (
            2 * POOL_BLOCKS - 1
        )
        ids = pool.take(PROMPT_BLOCKS)
        pool.keys.register(0, ids, numbers)
        pool.release(ids[::-1])

    for _ in range(2 * POOL_BLOCKS // PROMPT_BLOCKS):
        live()
    return live


def _each(call: Callable[[], Any], rounds: int = FLOOR_ROUNDS) -> float:
    times = []
    for _ in range(3):
        began = process_time()
        for _ in range(rounds):
            call()
        times.append(process_time() - began)
    return 1e6 * min(times) / rounds / PROMPT_BLOCKS


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m runs.speed.alone", description=__doc__)
    parser.add_argument("--side", default="ours", choices=SIDES, help="a peer's needs the peer's environment")
    parser.add_argument("--work", required=True, choices=WORKS)
    parser.add_argument("--trace", default="", help="conversation_trace.jsonl, for works that replay it")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--requests", type=int, default=Size.requests)
    parser.add_argument("--profile", choices=("layers", "functions"), help="of one run, instead of the times")
    options = parser.parse_args(given)
    side = make_side(options.side)
    if options.profile and "(compiled)" in side.version():
        parser.error("a profiler sees no compiled function: install the sources, with pip install -e .")
    runs = side.open(options.work, replace(Size(), trace=options.trace, requests=options.requests))
    if options.profile == "functions":
        profile_of(runs).sort_stats("tottime").print_stats(30)
    elif options.profile:
        for layer, share in by_layer(profile_of(runs)).items():
            print(f"{share:6.1%}  {layer}")
        for what, cost in floors().items():
            print(f"{cost:6.3f} µs a block  {what}")
    else:
        for _ in range(options.runs):
            run = next(runs)
            for part, seconds in run.seconds.items():
                each = 1e6 * seconds / run.units[part]
                print(f"{options.side} {options.work} {part}: {seconds:.4f} s, {each:.3f} µs each")
        print(f"evictions {run.evictions}, first decisions {run.decisions[:3]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
