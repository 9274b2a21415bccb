"""One work on one side alone: to look at, to profile, to optimise."""

from __future__ import annotations

import argparse
import cProfile
import pstats
from collections.abc import Callable
from dataclasses import replace

from kvhybrid import is_compiled
from runs.speed.catalogue import WORKS
from runs.speed.side import ManagerSide
from runs.speed.works import Size


def main(plain: Callable[[], ManagerSide], watching: Callable[[], ManagerSide] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run one work of the speed benchmark on one side alone.")
    parser.add_argument("--work", required=True, choices=WORKS)
    parser.add_argument("--trace", default="", help="conversation_trace.jsonl, for the works a:")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--requests", type=int, default=Size.requests)
    parser.add_argument("--watch", action="store_true", help="with miss causes and events, where it has them")
    parser.add_argument("--profile", action="store_true", help="functions by their own time; the runs are slower")
    given = parser.parse_args()
    if given.profile and is_compiled:
        parser.error("a profiler sees no compiled function: install the sources, with pip install -e .")
    side = watching() if given.watch and watching else plain()
    size = replace(Size(), trace=given.trace, requests=given.requests)
    work = side.open(given.work, size)
    profile = cProfile.Profile() if given.profile else None
    for _ in range(given.runs):
        if profile:
            profile.enable()
        run = next(work)
        if profile:
            profile.disable()
        for part, seconds in run.seconds.items():
            each = 1e6 * seconds / run.units[part]
            print(f"{side.name} {given.work} {part}: {seconds:.4f} s, {each:.3f} µs each")
    print(f"evictions {run.evictions}, first decisions {run.decisions[:3]}")
    if profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    return 0
