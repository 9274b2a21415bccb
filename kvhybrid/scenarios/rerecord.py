"""Replaces the answers in a scenario by those of this cache manager."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvhybrid.scenarios.check import Answers, Failure, play
from kvhybrid.scenarios.file import Scenario
from kvhybrid.scenarios.form import ScenarioError, UnsupportedScenarioError


def rerecorded(scenario: Scenario) -> Mapping[str, Any]:
    """``scenario`` with the actual answers in every ``expect``: for the keys that it has, or all keys if it has
    none.

    A scenario that cannot be played stays unchanged, and so does a step that fails. If an answer differs, later
    steps may become invalid; the scenario then ends before the first of these.
    """
    content = dict(scenario.content)
    if scenario.unsupported is not None:
        return content
    has_steps = content.get("kind", "steps") == "steps"
    if has_steps:
        content["steps"] = [dict(step) for step in content["steps"]]
    changed, played = False, 0
    try:
        for number, expected, got in play(scenario.content):
            played += 1
            answer = _answer(expected, got)
            if answer != expected:
                changed = True
                (content if number is None else content["steps"][number])["expect"] = answer
    except UnsupportedScenarioError:
        return content
    except ScenarioError as error:
        content["steps"] = content["steps"][:played]
        content["note"] = f"ends before the first step that is invalid after the new answers: {error}"
    if changed:
        # The answers are no longer written by hand.
        content.pop("oracle", None)
    return content


def _answer(expected: Mapping[str, Any], got: Answers) -> Mapping[str, Any]:
    if isinstance(got, Failure) or not got:
        return expected
    if expected and set(expected) <= set(got):
        return {key: got[key] for key in expected}
    return dict(got)
