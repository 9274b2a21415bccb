"""``kvhybrid scenario``: plays scenario files on the cache manager and compares its answers."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NoReturn

from kvhybrid.errors import InputError

if TYPE_CHECKING:
    from kvhybrid.scenarios.file import Scenario
    from kvhybrid.scenarios.verdict import Verdict

DESCRIPTION = """Plays scenarios (one JSON object per line: a cache configuration, steps, expected answers) on the
real cache manager and prints, per file, how many

  passed            every expected key matched
  failed            some key did not match: the first one is shown
  deviations        differ as the list of deviations says
  unsupported       are of an unknown kind or use a spec that is not installed
  optional misses   failed, but are marked as optional"""

EPILOG = """The list of deviations is a TOML file with a table per scenario id: letter, key, step, reason. Without
--deviations, it is deviations.toml in the folder of the scenario file, else
tests/scenarios/recorded/deviations.toml of this checkout. A listed scenario that passes is reported as stale; one
that differs at another key or step than listed has failed.

exit code: 0 nothing failed, 1 something failed, 2 a file or a scenario is invalid"""


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see kvhybrid scenario --help")


def _parser() -> ArgumentParser:
    parser = _Parser(
        prog="kvhybrid scenario",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="scenario files (.jsonl)")
    parser.add_argument("--deviations", type=Path, metavar="LIST", help="the list of deviations")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--record",
        type=Path,
        metavar="OUT",
        help="write the scenarios with the actual answers to OUT, a new file or a scenario file to replace",
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Play the files. Returns the exit code."""
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    from kvhybrid.scenarios.form import ScenarioError

    try:
        return _play(options)
    except ScenarioError as error:
        raise InputError(str(error)) from error


def _play(options: Namespace) -> int:
    from kvhybrid.scenarios.file import read_scenarios, scenario_output
    from kvhybrid.scenarios.report import print_json, print_report
    from kvhybrid.scenarios.verdict import Outcome

    files = list(dict.fromkeys(options.files))
    out = None if options.record is None else scenario_output("--record", options.record)
    started = perf_counter()
    scenarios = {file: list(read_scenarios(file)) for file in files}
    verdicts = [v for file in files for v in _judge(file, scenarios[file], options.deviations)]
    if out:
        _record(out, [s for file in files for s in scenarios[file]])
    seconds = perf_counter() - started
    (print_json if options.json else print_report)(verdicts, seconds)
    return int(any(verdict.outcome is Outcome.FAILED for verdict in verdicts))


def _judge(file: Path, scenarios: Sequence[Scenario], listed: Path | None) -> list[Verdict]:
    from kvhybrid.scenarios.deviations import default_list, read_deviations
    from kvhybrid.scenarios.verdict import judge

    path = listed or default_list(file)
    deviations = read_deviations(path) if path else {}
    return [judge(scenario, deviations) for scenario in scenarios]


def _record(out: Path, scenarios: Sequence[Scenario]) -> None:
    from kvhybrid.scenarios.file import write_scenarios
    from kvhybrid.scenarios.rerecord import rerecorded

    try:
        write_scenarios(out, map(rerecorded, scenarios))
    except OSError as error:
        raise InputError(f"--record {out}: {error.strerror}") from None
