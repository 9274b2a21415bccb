"""A scenario with the answers that this cache manager gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvhybrid.scenarios.check import Answers, Failure, play
from kvhybrid.scenarios.file import Scenario
from kvhybrid.scenarios.form import ScenarioError, UnsupportedScenarioError


def rerecorded(scenario: Scenario) -> Mapping[str, Any]:
    """``scenario`` with every ``expect`` answered here: the keys that it asks for, all where it asks for none.

    One that cannot be played here stays as it is, and so does a step that fails. Where an answer given here
    differs, later steps may make no sense any more; the scenario then ends before the first of them.
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
        content["note"] = f"ends where the answers no longer lead on: {error}"
    if changed:
        # What was written by hand is so no more.
        content.pop("oracle", None)
    return content


def _answer(expected: Mapping[str, Any], got: Answers) -> Mapping[str, Any]:
    if isinstance(got, Failure) or not got:
        return expected
    if expected and set(expected) <= set(got):
        return {key: got[key] for key in expected}
    return dict(got)
