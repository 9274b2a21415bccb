"""``python -m runs.speed``: the benchmark as a whole, its table, its picture, and whether all sides agreed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from kvhybrid import is_compiled
from kvhybrid.errors import InputError
from kvhybrid.replay.mooncake import MooncakeTrace
from kvhybrid.run_folder import RunFolder
from runs.speed.agreement import differences, excuse
from runs.speed.catalogue import WORKS
from runs.speed.comparisons import COMPARISONS
from runs.speed.layers import by_layer
from runs.speed.limits import floors
from runs.speed.pairs import Runs, ratios, take_turns
from runs.speed.plan import Plan, full_plan, quick_plan
from runs.speed.plot import plot_lines, plot_ratios
from runs.speed.straight import lines
from runs.speed.table import Results, as_json, markdown
from runs.speed.worker import make_side
from runs.speed.workers import Worker, working
from runs.speed.works import Size

HERE = Path(__file__).parent


def measure(plan: Plan, workers: dict[str, Worker]) -> tuple[Runs, list[str]]:
    """Every work of the plan by every side that has it: the runs that count, and where the sides disagreed."""
    counted: Runs = {}
    unequal: list[str] = []
    for step in plan.steps:
        sides = {name: workers[name] for name in step.sides if name in workers}
        if step.counts or len(sides) > 1:
            runs = take_turns(step.work, dict(sides), step.size, step.rounds, say)
            unequal += differences(runs)
            counted |= runs if step.counts else {}
    return counted, unequal


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def absolute(path: str) -> Path:
    """The workers have a working folder of their own."""
    return Path(path).absolute()


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m runs.speed", description=__doc__)
    parser.add_argument(
        "--trace", type=absolute, required=True, help="conversation_trace.jsonl of kvcache-ai/Mooncake"
    )
    parser.add_argument("--peers", type=absolute, help="the folder that setup_peers.sh filled; none: ours alone")
    parser.add_argument("--quick", action="store_true", help="small sizes and 3 pairs, about two minutes")
    parser.add_argument("--only", nargs="*", default=[""], metavar="START", help="works whose names start so")
    parser.add_argument("--out", type=Path, help="where table and picture are written")
    parser.add_argument(
        "--profile",
        choices=WORKS,
        help="print our layers' shares of this work, and end",
    )
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(given)
    try:
        MooncakeTrace(path=str(options.trace)).read()
    except InputError as error:
        say(str(error))
        return 2
    if options.profile and is_compiled:
        say("a profiler sees no compiled function: install the sources, with pip install -e .")
        return 2
    if options.profile:
        for layer, share in by_layer(make_side("ours"), options.profile, Size(trace=str(options.trace))).items():
            print(f"{share:6.1%}  {layer}")
        for what, cost in floors().items():
            print(f"{cost:6.3f} µs a block  {what}")
        return 0
    plan = (quick_plan if options.quick else full_plan)(str(options.trace)).only(options.only)
    with working(plan.sides, options.peers) as (workers, skipped):
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
    folder = RunFolder(place)
    folder.create()
    folder.write_text("table.md", text)
    folder.write_json("table.json", as_json(results, runs))
    if results.ratios:
        with folder.beside("ratios.png") as partial:
            plot_ratios(results.ratios, partial)
    if results.lines:
        with folder.beside("lines.png") as partial:
            plot_lines(results.lines, partial)


if __name__ == "__main__":
    raise SystemExit(main())
