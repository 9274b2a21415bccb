"""Prints findings, and writes the scenario file of a failing one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvhybrid.conformance.kit import Finding
from kvhybrid.conformance.shrink import Failing
from kvhybrid.errors import InputError
from kvhybrid.scenarios.file import scenario_output, write_scenarios

MARKS = {True: "✓", False: "✗", None: "-"}
PLAIN_MARKS = {True: "ok", False: "FAILED", None: "-"}


def report(findings: Iterable[Finding], name: str, folder: Path, encoding: str) -> bool:
    """Print a line per finding as it arrives, and write the failing scenario. Returns whether all checks pass."""
    try:
        "✓✗".encode(encoding)
        marks = MARKS
    except UnicodeEncodeError:
        marks = PLAIN_MARKS
    path = folder / f"check-spec-{name}.jsonl"
    if folder.exists():
        scenario_output("--out", path)
    passed = True
    for finding in findings:
        print(f"{marks[finding.passed]} {finding.check:<12}{finding.text}", flush=True)
        passed = passed and finding.passed is not False
        if finding.failing is not None:
            _write(path, as_scenario(finding.failing, name))
            print(f"  {len(finding.failing.steps)} steps show it: kvhybrid scenario {path}")
    return passed


def as_scenario(failing: Failing, name: str) -> dict[str, Any]:
    """A scenario that fails until the contract is met."""
    return {
        "id": f"check-spec-{name}",
        "title": f"{name} breaks the contract {failing.violation.check!r}",
        "note": failing.violation.text,
        "config": failing.config,
        "steps": failing.steps,
    }


def _write(path: Path, scenario: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_scenarios(scenario_output("--out", path), [scenario])
    except OSError as error:
        raise InputError(f"--out {path.parent}: {error.strerror}") from None
