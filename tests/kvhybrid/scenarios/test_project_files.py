"""The scenario files of this project, and the recorded ones if they are available."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvhybrid.scenarios.deviations import read_deviations
from kvhybrid.scenarios.file import Scenario, read_scenarios
from kvhybrid.scenarios.verdict import Outcome, judge

OWN = Path(__file__).parents[2] / "scenarios"
RECORDED = Path(__file__).parents[3].parent / "shared" / "scenarios"
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


@pytest.fixture(scope="module")
def recorded() -> list[Scenario]:
    if not RECORDED.is_dir():
        pytest.skip(f"the recorded scenarios are not at {RECORDED}")
    return scenarios_in(RECORDED)


def test_recorded_scenarios_differ_only_where_the_list_says_so(recorded: list[Scenario]) -> None:
    deviations = read_deviations(OWN / "deviations.toml")
    verdicts = [judge(scenario, deviations) for scenario in recorded]
    failed = [v.scenario.id for v in verdicts if v.outcome in (Outcome.FAILED, Outcome.UNSUPPORTED)]
    stale = [v.scenario.id for v in verdicts if v.is_stale]
    assert failed == []
    assert stale == []
    differing = [v for v in verdicts if v.outcome is Outcome.DEVIATES]
    assert len(differing) <= 0.03 * len(verdicts)
    assert {v.scenario.id for v in differing} == set(deviations)
