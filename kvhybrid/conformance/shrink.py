"""Shrinks a failing scenario to a minimal one that breaks the same contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kvhybrid.conformance.twin import Config, Twins
from kvhybrid.conformance.violation import Violation
from kvhybrid.scenarios.form import ScenarioError, ScenarioStep
from kvhybrid.scenarios.player import tokens_of
from kvhybrid.scenarios.token_names import runs_of

REPLAYS = 800
NEEDED = ("num_blocks", "groups", "max_model_len")


@dataclass(frozen=True)
class Failing:
    """A configuration and steps, the last of which breaks a contract."""

    config: Config
    steps: list[ScenarioStep]
    violation: Violation

    @property
    def cost(self) -> tuple[int, ...]:
        """Sort key: number of steps, then of tokens, groups, options and blocks."""
        submitted = [step for step in self.steps if step["do"] == "submit"]
        tokens = sum(count for step in submitted for _, count in step["tokens"])
        options = sum(len(step) - ("expect" in step) for step in self.steps) + len(self.config)
        new = sum(step.get("new_tokens", 0) + len(step.get("blocks", ())) for step in self.steps)
        return len(self.steps), tokens, len(self.config["groups"]), options, self.config["num_blocks"], new


def replay(config: Config, steps: list[ScenarioStep], kinds: frozenset[str]) -> Failing | None:
    """Play ``steps``, skipping those that are invalid; returns None if no contract is broken."""
    try:
        twins = Twins(config, kinds)
    except ScenarioError:
        return None
    except Violation as violation:
        return Failing(config, [], violation)
    try:
        for step in steps:
            fitted = twins.fitted(step)
            if fitted is not None:
                twins.play(fitted)
    except ScenarioError:
        return None
    except Violation as violation:
        return Failing(config, twins.steps, violation)
    return None


def shrink(failing: Failing, kinds: frozenset[str]) -> Failing:
    """Make ``failing`` smaller while the same check still fails."""
    best, left = failing, REPLAYS
    improved = True
    while improved:
        improved = False
        for ideas in (_fewer_requests, _fewer_steps, _fewer_groups, _fewer_options, _longer_chunks, _fewer_tokens):
            at = 0
            while left:
                candidate = _nth(ideas(best), at)
                if candidate is None:
                    break
                left -= 1
                smaller = replay(*candidate, kinds)
                if smaller and smaller.violation.check == failing.violation.check and smaller.cost < best.cost:
                    best, improved = smaller, True
                else:
                    at += 1
    return best


Candidate = tuple[Config, list[ScenarioStep]]
Ideas = Callable[[Failing], Iterator[Candidate]]


def _nth(ideas: Iterator[Candidate], at: int) -> Candidate | None:
    for number, idea in enumerate(ideas):
        if number == at:
            return idea
    return None


def _fewer_requests(failing: Failing) -> Iterator[Candidate]:
    for name in dict.fromkeys(step["request"] for step in failing.steps if "request" in step):
        yield failing.config, [step for step in failing.steps if step.get("request") != name]


def _fewer_steps(failing: Failing) -> Iterator[Candidate]:
    """Without a range of the steps: half of them, a quarter, …, one."""
    steps, size = failing.steps, len(failing.steps) // 2
    while size:
        for start in range(0, len(steps), size):
            yield failing.config, steps[:start] + steps[start + size :]
        size //= 2
    for at in range(len(steps) - 1):
        yield failing.config, steps[:at] + steps[at + 2 :]


def _fewer_groups(failing: Failing) -> Iterator[Candidate]:
    groups, drafts = failing.config["groups"], failing.config.get("eagle") or []
    for g in range(len(groups)) if len(groups) > 1 else ():
        kept = [draft - (draft > g) for draft in drafts if draft != g]
        changed = {**failing.config, "groups": groups[:g] + groups[g + 1 :], "eagle": kept}
        yield (changed if kept else _without(changed, "eagle")), failing.steps


def _fewer_options(failing: Failing) -> Iterator[Candidate]:
    config, steps = failing.config, failing.steps
    for key in config:
        if key not in NEEDED:
            yield _without(config, key), steps
    for at, step in enumerate(steps):
        for key in step:
            if key not in ("do", "request", "tokens", "new_tokens", "blocks", "expect"):
                yield config, [*steps[:at], _without(step, key), *steps[at + 1 :]]
        if len(step.get("blocks", ())) > 1:
            for block in step["blocks"]:
                yield config, [*steps[:at], {**step, "blocks": [block]}, *steps[at + 1 :]]
    for blocks in (config["num_blocks"] // 2, config["num_blocks"] - 1):
        if blocks > 1:
            yield {**config, "num_blocks": blocks}, steps


def _longer_chunks(failing: Failing) -> Iterator[Candidate]:
    """The whole prompt in one step, which makes later steps unnecessary."""
    for at, step in enumerate(failing.steps):
        if step["do"] == "allocate":
            longer = {**step, "new_tokens": failing.config["max_model_len"]}
            yield failing.config, [*failing.steps[:at], longer, *failing.steps[at + 1 :]]


def _fewer_tokens(failing: Failing) -> Iterator[Candidate]:
    steps = failing.steps
    for at, step in enumerate(steps):
        if step["do"] == "submit":
            tokens = tokens_of(step["tokens"])
            for fewer in (tokens[: len(tokens) // 2], tokens[len(tokens) // 2 :], tokens[:-1], tokens[1:]):
                if fewer:
                    yield failing.config, [*steps[:at], {**step, "tokens": runs_of(fewer)}, *steps[at + 1 :]]
        elif step.get("new_tokens", 0) > 1:
            for fewer_new in (step["new_tokens"] // 2, step["new_tokens"] - 1):
                yield failing.config, [*steps[:at], {**step, "new_tokens": fewer_new}, *steps[at + 1 :]]


def _without(values: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != key}
