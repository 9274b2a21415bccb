"""Prints verdicts: a table and the failures, or one JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from kvhybrid.console import console
from kvhybrid.scenarios.difference import difference
from kvhybrid.scenarios.verdict import Outcome, Verdict, by_file, tally

HEADINGS = ("file", "scenarios", *(outcome.value for outcome in Outcome))


def print_report(verdicts: Sequence[Verdict], seconds: float) -> None:
    """Print the table of counts, a paragraph per failure, and a line per scenario that is unsupported or stale."""
    files = by_file(verdicts)
    names_differ = len({file.name for file in files}) == len(files)
    rows = [_row(file.name if names_differ else str(file), own) for file, own in files.items()]
    if len(rows) != 1:
        rows.append(_row("all", verdicts))
    if sys.stdout.isatty():
        _print_rich(rows)
    else:
        _print_plain(rows)
    for verdict in verdicts:
        if verdict.outcome is Outcome.FAILED:
            print(failure_text(verdict))
    for verdict in verdicts:
        if verdict.outcome is Outcome.UNSUPPORTED:
            print(f"unsupported: {verdict.scenario.place}, {verdict.scenario.id}: {verdict.unsupported}")
        if verdict.is_stale:
            print(f"stale: {verdict.scenario.id} is listed as a deviation, but passes")
    print(f"{len(verdicts):,} scenarios in {seconds:.1f} s")


def failure_text(verdict: Verdict) -> str:
    """The location of a failure, and the expected and actual answers."""
    mismatch = verdict.mismatch
    assert mismatch is not None
    expected, got = difference(mismatch.expected, mismatch.got)
    lines = [
        f"failed: {verdict.scenario.id} ({verdict.scenario.place}), {_where(verdict)}{mismatch.key}",
        f"  expected {expected}",
        f"  got      {got}",
    ]
    if verdict.deviation is not None:
        listed = f"step {verdict.deviation.step}, {verdict.deviation.key}"
        lines.append(f"  (listed as a deviation at {listed})")
    return "\n".join(lines)


def as_object(verdicts: Sequence[Verdict], seconds: float) -> dict[str, Any]:
    """Counts per file and in total, and an entry per scenario that did not simply pass, for ``--json``."""
    return {
        "files": [{"file": str(file), **_counts(own)} for file, own in by_file(verdicts).items()],
        "all": _counts(verdicts),
        "failures": [_entry(v) for v in verdicts if v.outcome is Outcome.FAILED],
        "deviations": [_entry(v) for v in verdicts if v.outcome is Outcome.DEVIATES],
        "optional_misses": [_entry(v) for v in verdicts if v.outcome is Outcome.OPTIONAL_MISS],
        "unsupported": [
            {"id": v.scenario.id, "file": str(v.scenario.file), "line": v.scenario.line, "reason": v.unsupported}
            for v in verdicts
            if v.outcome is Outcome.UNSUPPORTED
        ],
        "stale": [v.scenario.id for v in verdicts if v.is_stale],
        "seconds": round(seconds, 3),
    }


def print_json(verdicts: Sequence[Verdict], seconds: float) -> None:
    print(json.dumps(as_object(verdicts, seconds), indent=2, default=str))


def _where(verdict: Verdict) -> str:
    assert verdict.mismatch is not None
    number = verdict.mismatch.step
    if number is None:
        return ""
    step = verdict.scenario.content["steps"][number]
    request = f" {step['request']}" if "request" in step else ""
    return f"step {number} ({step['do']}{request}), "


def _entry(verdict: Verdict) -> dict[str, Any]:
    mismatch, scenario = verdict.mismatch, verdict.scenario
    assert mismatch is not None
    entry = {
        "id": scenario.id,
        "file": str(scenario.file),
        "line": scenario.line,
        "step": mismatch.step,
        "key": mismatch.key,
        "expected": mismatch.expected,
        "got": mismatch.got,
    }
    if mismatch.step is not None:
        step = scenario.content["steps"][mismatch.step]
        entry.update(do=step["do"], request=step.get("request"))
    if verdict.outcome is Outcome.DEVIATES and verdict.deviation is not None:
        entry.update(letter=verdict.deviation.letter, reason=verdict.deviation.reason)
    return entry


def _counts(verdicts: Sequence[Verdict]) -> dict[str, int]:
    counts = tally(verdicts)
    return {"scenarios": len(verdicts), **{o.value.replace(" ", "_"): counts[o] for o in Outcome}}


def _row(name: str, verdicts: Sequence[Verdict]) -> list[str]:
    counts = tally(verdicts)
    return [name, f"{len(verdicts):,}", *(f"{counts[outcome]:,}" for outcome in Outcome)]


def _print_plain(rows: Iterable[Sequence[str]]) -> None:
    lines = [HEADINGS, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    for line in lines:
        numbers = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print("  ".join([line[0].ljust(widths[0]), *numbers]))


def _print_rich(rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=0)
    table.add_column(HEADINGS[0], overflow="fold")
    for heading in HEADINGS[1:]:
        table.add_column(heading, justify="right")
    failed = HEADINGS.index(Outcome.FAILED.value)
    for row in rows:
        table.add_row(row[0], *row[1:], style="red" if row[failed] != "0" else None)
    console().print(table)
