"""The cache manager against its peers: all works in alternating runs, a table, pictures, whether they agree."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from kvhybrid.errors import InputError
from kvhybrid.replay.mooncake import MooncakeTrace
from kvhybrid.run_folder import RunFolder
from runs.speed.agreement import differences, excuse
from runs.speed.comparisons import COMPARISONS, lines, ratios
from runs.speed.plan import Plan, full_plan, quick_plan, take_turns
from runs.speed.side import Runs
from runs.speed.table import Results, as_json, markdown, plot_lines, plot_ratios
from runs.speed.worker import Worker, working

HERE = Path(__file__).parent


def measure(plan: Plan, workers: dict[str, Worker]) -> tuple[Runs, list[str]]:
    """Every work of the plan by every side that has it: the runs that count, and where the sides disagreed."""
    counted: Runs = {}
    unequal: list[str] = []
    for step in plan.steps:
        sides = {name: workers[name] for name in step.sides if name in workers}
        if step.counts or len(sides) > 1:
            runs = take_turns(step.work, sides, step.size, step.rounds, say)
            unequal += differences(runs)
            counted |= runs if step.counts else {}
    return counted, unequal


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """What `plan_of` reads."""
    parser.add_argument("--trace", type=Path, required=True, help="Mooncake's conversation_trace.jsonl")
    parser.add_argument("--quick", action="store_true", help="small sizes and 3 pairs, about two minutes")
    parser.add_argument("--only", nargs="*", default=[""], metavar="START", help="works whose names start so")


def plan_of(options: argparse.Namespace) -> Plan:
    """
    Raises:
        InputError: The trace cannot be read.
    """
    trace = str(options.trace.absolute())  # the workers have a working folder of their own
    MooncakeTrace(path=trace).read()
    return (quick_plan if options.quick else full_plan)(trace).only(options.only)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m runs.speed.run", description=__doc__)
    add_plan_options(parser)
    parser.add_argument("--peers", type=Path, help="the folder that setup_peers.sh filled; without it, ours alone")
    parser.add_argument(
        "--out",
        type=Path,
        help="folder of table and pictures (default: runs/speed for the whole, else runs/outputs/speed)",
    )
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(given)
    try:
        plan = plan_of(options)
    except InputError as error:
        say(str(error))
        return 2
    with working(plan.sides, options.peers and options.peers.absolute()) as (workers, skipped):
        for reason in skipped:
            say(f"skipped: {reason}")
        runs, unequal = measure(plan, workers)
    versions = {name: worker.version for name, worker in workers.items() if worker.version}
    results = Results(ratios(COMPARISONS, runs), lines(runs), versions, skipped, unequal, *plan.requests)
    whole = options.only == [""] and not options.quick
    write(results, runs, options.out or (HERE if whole else HERE.parent / "outputs" / "speed"))
    return 0 if all(map(excuse, unequal)) else 1


def write(results: Results, runs: Runs, place: Path) -> None:
    """Table, JSON and pictures."""
    text = markdown(results)
    print(text)
    place.mkdir(parents=True, exist_ok=True)
    folder = RunFolder(place)
    folder.write_text("table.md", text)
    folder.write_json("table.json", as_json(results, runs))
    if results.ratios:
        plot_ratios(results.ratios, place / "plot.png")
    if results.lines:
        plot_lines(results.lines, place / "lines.png")


if __name__ == "__main__":
    raise SystemExit(main())
