"""Compares two cache managers: one with the spec's own manager, one with the generic manager instead."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.conformance.invariants import check_invariants
from kvhybrid.conformance.stage import Stage
from kvhybrid.conformance.unwritten import UnwrittenStates
from kvhybrid.conformance.violation import Violation, raised
from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.scenarios.config import build_manager
from kvhybrid.scenarios.form import ScenarioError, ScenarioStep
from kvhybrid.scenarios.player import Answer, Player
from kvhybrid.scenarios.pool_state import pool_state
from kvhybrid.specs import registry

MANAGER = "manager"
EXCEPTIONS = "exceptions"

Config = dict[str, Any]


class Twins(Stage):
    """Plays every step on both managers with everything recorded, and compares their answers and states.

    ``steps`` has the correct answers, so it is a scenario that fails until the contract is met.
    """

    def __init__(self, config: Config, kinds: Set[str]) -> None:
        """``kinds`` are the registered names of the specs under test.

        Raises:
            ScenarioError: The configuration is invalid.
            Violation: The spec's manager cannot be built.
        """
        try:
            super().__init__(build_manager(config, watched=True))
            self.generic = Player(with_generic_managers(build_manager(config, watched=True), kinds))
        except ScenarioError:
            raise
        except Exception as error:
            raise Violation(EXCEPTIONS, f"building the cache manager raises {raised(error)}") from error
        self.config = config
        self._unwritten = UnwrittenStates(self.manager, kinds)

    def answer(self, step: ScenarioStep) -> Answer:
        expected = self._expected(step)
        if expected:
            step["expect"] = expected
        try:
            return super().answer(step)
        except Exception as error:
            raise Violation(EXCEPTIONS, f"{_call_text(step)} raises {raised(error)}{self._aftermath()}") from error

    def check(self, step: ScenarioStep, answer: Answer, adopted: Answer) -> None:
        try:
            self.check_lookup(step, answer)
            self._unwritten.see(step, answer, adopted)
            self._compare(step, answer)
            self.check_state(step, answer)
        except Violation as violation:
            step.update({"expect": violation.right} if violation.right else {})
            raise
        except Exception as error:
            raise Violation(EXCEPTIONS, f"looking at {_call_text(step)} raises {raised(error)}") from error

    def _expected(self, step: ScenarioStep) -> Answer:
        try:
            return self.generic.play(step)
        except ScenarioError:
            raise  # the step does not fit: no contract is broken
        except Exception as error:
            text = f"{_call_text(step)} raises {raised(error)}"
            try:
                self.player.play(step)
            except Exception as own:
                raise Violation(EXCEPTIONS, f"{_call_text(step)} raises {raised(own)}{self._aftermath()}") from own
            raise Violation(EXCEPTIONS, f"with the generic manager, {text}") from error

    def _aftermath(self) -> str:
        try:
            check_invariants(self.manager)
        except Violation as violation:
            return f"; afterwards: {violation.text}"
        except Exception as error:
            return f"; afterwards the state cannot be read: {raised(error)}"
        return ""

    def _compare(self, step: ScenarioStep, got: Answer) -> None:
        expected = step.get("expect", {})
        if got != expected:
            theirs, right = _differing(got, expected), _differing(expected, got)
            raise Violation(MANAGER, f"{_call_text(step)} answers {theirs}, the generic manager {right}")
        states = [pool_state(p.manager, {name: name for name in p.requests}) for p in (self.generic, self.player)]
        if states[0] != states[1]:
            differing = _differing(*states)
            self.steps.append({"do": "state", "expect": differing})
            key = next(
                key for key in ("tables", "refs", "cached", "free_queue", "num_free", "usage") if key in differing
            )
            raise Violation(
                MANAGER,
                f"{_call_text(step)} leaves {key} = {states[1][key]}, the generic manager {differing[key]}",
            )


def with_generic_managers(manager: KVCacheManager, kinds: Set[str]) -> KVCacheManager:
    """``manager``, which must be empty, with the generic single-type manager for every spec of ``kinds``.

    The generic manager only keys whole blocks, so a manager with hits inside blocks is kept and checked only by
    brute force.
    """
    managers = manager.coordinator.managers
    for c, own in enumerate(managers):
        inside = own.rules.sub_block_hits and own.units_per_block > 1
        if registry.name_of(type(own.spec)) in kinds and not inside:
            managers[c] = SingleTypeKVCacheManager(own.spec, own.pool, own.rules)
    return manager


def _differing(answer: Answer, other: Answer) -> Answer:
    """The keys of ``answer`` that are missing in ``other`` or have another value."""
    return {key: value for key, value in answer.items() if key not in other or other[key] != value}


def _call_text(step: ScenarioStep) -> str:
    return f"{step['do']} {step['request']!r}" if "request" in step else str(step["do"])
