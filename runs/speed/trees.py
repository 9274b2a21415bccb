"""Two trees of kvhybrid against each other: the works of our sides in alternating pairs, old and new.

Each tree is an environment with its own kvhybrid. Where that is an editable installation, the checkout behind it
drives the works as well, so that the trees may have other module names; otherwise this checkout does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from statistics import median, quantiles
from typing import TypeAlias

from kvhybrid.errors import InputError
from runs.speed.agreement import differences
from runs.speed.comparisons import scale_of
from runs.speed.plan import Plan, Step, take_turns
from runs.speed.run import add_plan_options, plan_of, say
from runs.speed.side import Run, Runs
from runs.speed.worker import ENVIRONMENTS, MissingEnvironmentError, Worker, WorkerProcess

SLOWER = 0.95
"""A median below this is marked, if three quarters of the pairs are below 1 as well: one slow phase is no loss."""
HEADING = (
    "| work | old, µs | new, µs | least | quarter | old / new | quarter | most | pairs | |\n" + "|---" * 10 + "|"
)
Trees: TypeAlias = dict[str, WorkerProcess]
"""By ``old`` and ``new``."""


def measure(plan: Plan, trees: Trees) -> Iterator[tuple[str, str, Runs]]:
    """Side, work and runs of every work of the plan that a side of ours has; the runs are by tree and work."""
    told = False
    for step in plan.steps:
        for side in step.sides:
            if ENVIRONMENTS[side] == "ours" and step.counts:
                workers = {tree: Worker(side, process) for tree, process in trees.items()}
                runs = take_turns(step.work, workers, step.size, step.rounds, say)
                if not told:
                    told = True
                    print(f"old: {workers['old'].version}; new: {workers['new'].version}\n\n{HEADING}", flush=True)
                yield side, step.work, runs


def rows(side: str, old: Sequence[Run], new: Sequence[Run], work: str) -> Iterator[str]:
    """One line for each part of a work: the time of the old tree divided by that of the new one, pair by pair."""
    for part, units in old[0].units.items():
        before, after = ([scale_of(work) / units * run.seconds[part] for run in runs] for runs in (old, new))
        ratios = [b / a for b, a in zip(before, after, strict=True)]
        middle = median(ratios)
        low, _, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else [middle] * 3
        cells = (
            f"{work}/{part}{side.removeprefix('ours')}",
            f"{median(before):.4g}",
            f"{median(after):.4g}",
            f"{min(ratios):.2f}",
            f"{low:.2f}",
            f"**{middle:.2f}**",
            f"{high:.2f}",
            f"{max(ratios):.2f}",
            str(len(ratios)),
            "slower" if middle < SLOWER and high < 1 else "",
        )
        yield f"| {' | '.join(cells)} |"


def _with_rounds(step: Step, rounds: int) -> Step:
    """A work on the trace's parts has a part for every round."""
    return replace(step, rounds=rounds, size=replace(step.size, parts=rounds))


def main(given: Sequence[str] | None = None) -> int:
    """0, or 1 where the trees decided differently; 2 where something cannot be run."""
    parser = argparse.ArgumentParser(prog="python -m runs.speed.trees", description=__doc__)
    for tree in ("old", "new"):
        parser.add_argument(f"--{tree}", required=True, metavar="PYTHON", help=f"interpreter of the {tree} tree")
    add_plan_options(parser)
    parser.add_argument("--rounds", type=int, help="pairs of every work, instead of the plan's")
    options = parser.parse_args(given)
    unequal: list[str] = []
    with ExitStack() as running:
        try:
            plan = plan_of(options)
            trees: Trees = {}
            for tree in ("old", "new"):
                trees[tree] = WorkerProcess(tree, "ours", getattr(options, tree))
                running.callback(trees[tree].end)
            for process in trees.values():
                process.wait()
        except (InputError, MissingEnvironmentError) as error:
            say(str(error))
            return 2
        if options.rounds:
            plan = replace(plan, steps=tuple(_with_rounds(step, options.rounds) for step in plan.steps))
        for side, work, runs in measure(plan, trees):
            for row in rows(side, runs["old", work], runs["new", work], work):
                print(row, flush=True)
            unequal += differences(runs, own="new")
    for line in unequal:
        print(f"- Decided differently: {line}.")
    return 1 if unequal else 0


if __name__ == "__main__":
    sys.exit(main())
