"""Outcomes of scenarios."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from kvhybrid.scenarios.check import Mismatch, check
from kvhybrid.scenarios.deviations import Deviation
from kvhybrid.scenarios.file import Scenario
from kvhybrid.scenarios.form import ScenarioError, UnsupportedScenarioError


class Outcome(Enum):
    """The outcome of a scenario; only `FAILED` is an error."""

    PASSED = "passed"
    FAILED = "failed"
    DEVIATES = "deviations"
    UNSUPPORTED = "unsupported"
    OPTIONAL_MISS = "optional misses"


@dataclass(frozen=True)
class Verdict:
    """The outcome of one scenario, with details."""

    scenario: Scenario
    outcome: Outcome
    mismatch: Mismatch | None = None
    deviation: Deviation | None = None
    """Its entry in the list of deviations."""
    unsupported: str = ""
    """Why the scenario is unsupported."""

    @property
    def is_stale(self) -> bool:
        """Whether it is listed as a deviation but passes."""
        return self.outcome is Outcome.PASSED and self.deviation is not None


def judge(scenario: Scenario, deviations: Mapping[str, Deviation]) -> Verdict:
    """Play ``scenario``.

    Raises:
        ScenarioError: The scenario is inconsistent. The message has the file and the line.
    """
    deviation = deviations.get(scenario.id)
    if scenario.unsupported is not None:
        return Verdict(scenario, Outcome.UNSUPPORTED, unsupported=scenario.unsupported)
    try:
        mismatch = check(scenario.content)
    except UnsupportedScenarioError as error:
        return Verdict(scenario, Outcome.UNSUPPORTED, unsupported=str(error))
    except ScenarioError as error:
        raise ScenarioError(f"{scenario.place}: {error}") from None
    if mismatch is None:
        return Verdict(scenario, Outcome.PASSED, deviation=deviation)
    if deviation is not None and deviation.covers(mismatch):
        return Verdict(scenario, Outcome.DEVIATES, mismatch, deviation)
    outcome = Outcome.OPTIONAL_MISS if scenario.optional else Outcome.FAILED
    return Verdict(scenario, outcome, mismatch, deviation)


def tally(verdicts: Iterable[Verdict]) -> dict[Outcome, int]:
    """How many scenarios had each outcome."""
    counted = Counter(verdict.outcome for verdict in verdicts)
    return {outcome: counted[outcome] for outcome in Outcome}


def by_file(verdicts: Iterable[Verdict]) -> dict[Path, list[Verdict]]:
    """Verdicts of each file, in the order given."""
    files: dict[Path, list[Verdict]] = {}
    for verdict in verdicts:
        files.setdefault(verdict.scenario.file, []).append(verdict)
    return files
