"""The scenarios written for this project, and those recorded from the reference system."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvhybrid.scenarios.deviations import read_deviations
from kvhybrid.scenarios.file import Scenario, read_scenarios
from kvhybrid.scenarios.verdict import Outcome, judge

OWN = Path(__file__).parents[2] / "scenarios"
RECORDED = OWN / "recorded"
FEATURES = {
    "admission",
    "chunked_local",
    "cross",
    "dcp",
    "eagle",
    "external_tokens",
    "full",
    "junction",
    "letters",
    "mamba",
    "partial_hits",
    "preempt",
    "reset_evict",
    "retention",
    "sliding_window",
}


def scenarios_in(folder: Path) -> list[Scenario]:
    return [scenario for file in sorted(folder.glob("*.jsonl")) for scenario in read_scenarios(file)]


@pytest.mark.parametrize("scenario", scenarios_in(OWN), ids=lambda scenario: scenario.id)
def test_every_scenario_of_this_project_comes_out(scenario: Scenario) -> None:
    verdict = judge(scenario, {})
    assert verdict.outcome is Outcome.PASSED, verdict.mismatch


def test_every_feature_has_a_file() -> None:
    assert {file.stem for file in OWN.glob("*.jsonl")} == FEATURES


def test_recorded_scenarios_differ_only_where_the_list_says_so() -> None:
    deviations = read_deviations(RECORDED / "deviations.toml")
    verdicts = [judge(scenario, deviations) for scenario in scenarios_in(RECORDED)]
    failed = [v.scenario.id for v in verdicts if v.outcome in (Outcome.FAILED, Outcome.UNSUPPORTED)]
    stale = [v.scenario.id for v in verdicts if v.is_stale]
    assert failed == []
    assert stale == []
    differing = [v for v in verdicts if v.outcome is Outcome.DEVIATES]
    assert len(differing) <= 0.03 * len(verdicts)
    assert {v.scenario.id for v in differing} == set(deviations)
