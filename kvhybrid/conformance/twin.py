"""Two cache managers side by side: one with the spec's own manager, one with the generic manager in its place."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.conformance.invariants import check_backed, check_invariants
from kvhybrid.conformance.oracle import check_hit
from kvhybrid.conformance.unwritten import UnwrittenStates
from kvhybrid.conformance.violation import Violation, raised
from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.scenarios.config import build_manager
from kvhybrid.scenarios.form import ScenarioError, ScenarioStep
from kvhybrid.scenarios.player import STARTING, Answer, Player
from kvhybrid.scenarios.pool_state import pool_state
from kvhybrid.scheduling.chunking import PrefillChunking
from kvhybrid.specs import registry

MANAGER = "manager"
EXCEPTIONS = "exceptions"
MOST_DRAFTS = 3

Config = dict[str, Any]


@dataclass
class Tally:
    """What a scenario, or many, came to."""

    calls: int = 0
    lookups: int = 0
    hits: int = 0
    refusals: int = 0

    def add(self, other: Tally) -> None:
        self.calls += other.calls
        self.lookups += other.lookups
        self.hits += other.hits
        self.refusals += other.refusals


class Twins:
    """Plays every step on both, and compares: each other's answers, brute force, and the invariants.

    ``steps`` collects what was played with the answers that are right, so that it is a scenario.
    """

    def __init__(self, config: Config, kinds: Set[str]) -> None:
        """``kinds`` are the registered names of the specs under test.

        Raises:
            ScenarioError: The configuration cannot work.
            Violation: The spec's manager cannot be built.
        """
        try:
            self.own = Player(build_manager(config))
            self.generic = Player(with_generic_managers(build_manager(config), kinds))
        except ScenarioError:
            raise
        except Exception as error:
            raise Violation(EXCEPTIONS, f"building the cache manager raises {raised(error)}") from error
        self.config = config
        self.steps: list[ScenarioStep] = []
        self.tally = Tally()
        manager = self.generic.manager
        self._chunking = PrefillChunking(manager.config, manager.coordinator.alignment)
        self._unwritten = UnwrittenStates(self.own.manager, kinds)
        self._has_states = any(group.spec.state for group in manager.config.groups)

    @property
    def requests(self) -> Mapping[str, Request]:
        return self.generic.requests

    # ---- what makes sense

    def fitted(self, step: ScenarioStep) -> ScenarioStep | None:
        """``step`` cut to what a scheduler would do now, None where it would do nothing of the kind."""
        do, request = step["do"], self.requests.get(step.get("request", ""))
        if "request" not in step:
            return step
        if do == "submit":
            return step if request is None else None
        if request is None or request.status is RequestStatus.FINISHED:
            return None
        if do == "allocate":
            return self._fitted_allocation(step, request)
        return step if self._makes_sense(step, request) else None

    def _makes_sense(self, step: ScenarioStep, request: Request) -> bool:
        do, computed = step["do"], request.num_computed_tokens
        if do == "free":
            return True
        if do == "lookup":
            return request.status in STARTING and not computed
        if do == "load_done":
            return request.status is RequestStatus.LOADING
        if request.status is not RequestStatus.RUNNING:
            return False
        if do == "append":
            longest = self.generic.manager.max_model_len
            return computed >= request.num_tokens and request.num_tokens + _count(step) <= longest
        if do == "reject":
            return bool(computed - step["tokens"] >= request.num_tokens - 1 > 0)
        return bool(do == "preempt" or step["tokens"] <= computed)

    def _fitted_allocation(self, step: ScenarioStep, request: Request) -> ScenarioStep | None:
        manager, starting = self.generic.manager, request.status in STARTING
        hit = 0
        if starting and not request.num_computed_tokens:
            last = self.steps[-1] if self.steps else {}
            if last.get("do") != "lookup" or last["request"] != request.request_id:
                return None
            hit = last["expect"]["hit_tokens"]
        elif request.status not in (*STARTING, RequestStatus.RUNNING):
            return None
        external = step.get("external_tokens", 0)
        start = request.num_computed_tokens + hit
        if external and (not starting or request.num_computed_tokens or start + external >= request.num_tokens):
            return None
        start += external
        decoding = start >= request.num_tokens - 1 and not starting
        room = request.num_tokens + (MOST_DRAFTS if decoding and not self._has_states else 0)
        new = min(step["new_tokens"], room - start, manager.max_model_len - start)
        if step.get("delay_cache"):
            new = 0
        elif new < 1:
            return None
        else:
            new = self._chunking.clip(request, start, new)
        return {**step, "new_tokens": new} if new or external else None

    # ---- playing

    def play(self, step: ScenarioStep) -> Answer:
        """Play a fitted step on both. Returns the answer.

        Raises:
            Violation: A contract is broken; the last of ``steps`` is where.
        """
        before = self.steps[-1] if self.steps else {}
        adopts = step["do"] == "allocate" and before.get("do") == "lookup"
        step = {key: value for key, value in step.items() if key != "expect"}
        self.steps.append(step)
        self.tally.calls += 1
        expected = self._expected(step)
        if expected:
            step["expect"] = expected
        try:
            got = self.own.play(step)
        except Exception as error:
            raise Violation(EXCEPTIONS, f"{_said(step)} raises {raised(error)}{self._aftermath()}") from error
        try:
            self._check_hit(step, got)
            self._unwritten.see(step, got, before["expect"] if adopts else {})
            self._compare(step, expected, got)
            self._check_after(step, got)
        except Violation as violation:
            step.update({"expect": violation.right} if violation.right else {})
            raise
        except Exception as error:
            raise Violation(EXCEPTIONS, f"looking at {_said(step)} raises {raised(error)}") from error
        return got

    def _expected(self, step: ScenarioStep) -> Answer:
        try:
            return self.generic.play(step)
        except Exception as error:
            text = f"{_said(step)} raises {raised(error)}"
            try:
                self.own.play(step)
            except Exception as own:
                raise Violation(EXCEPTIONS, f"{_said(step)} raises {raised(own)}{self._aftermath()}") from own
            raise Violation(EXCEPTIONS, f"with the generic manager, {text}") from error

    def _aftermath(self) -> str:
        try:
            check_invariants(self.own.manager)
        except Violation as violation:
            return f"; it leaves this behind: {violation.text}"
        except Exception as error:
            return f"; the state that it leaves behind cannot be read: {raised(error)}"
        return ""

    def _compare(self, step: ScenarioStep, expected: Answer, got: Answer) -> None:
        if got != expected:
            theirs, right = _differing(got, expected), _differing(expected, got)
            raise Violation(MANAGER, f"{_said(step)} answers {theirs}, the generic manager {right}")
        states = [pool_state(p.manager, {name: name for name in p.requests}) for p in (self.generic, self.own)]
        if states[0] != states[1]:
            differing = _differing(*states)
            self.steps.append({"do": "state", "expect": differing})
            key = next(
                key for key in ("tables", "refs", "cached", "free_queue", "num_free", "usage") if key in differing
            )
            raise Violation(
                MANAGER, f"{_said(step)} leaves {key} = {states[1][key]}, the generic manager {differing[key]}"
            )

    def _check_hit(self, step: ScenarioStep, got: Answer) -> None:
        if step["do"] == "lookup":
            self.tally.lookups += 1
            self.tally.hits += int(got["hit_tokens"] > 0)
            check_hit(self.own.manager, self.own.requests[step["request"]], got)

    def _check_after(self, step: ScenarioStep, got: Answer) -> None:
        manager = self.own.manager
        check_invariants(manager)
        self.tally.refusals += int("refused" in got)
        if "new_blocks" in got:
            request = self.own.requests[step["request"]]
            end = request.num_computed_tokens
            check_backed(manager, request, end - step["new_tokens"], end)


def with_generic_managers(manager: KVCacheManager, kinds: Set[str]) -> KVCacheManager:
    """``manager``, still empty, with the generic single-type manager for every spec of ``kinds``."""
    managers = manager.coordinator.managers
    for c, own in enumerate(managers):
        if registry.entry_of(own.spec).name in kinds:
            managers[c] = SingleTypeKVCacheManager(own.spec, own.pool, own.rules)
    return manager


def _differing(answer: Answer, other: Answer) -> Answer:
    """The keys of ``answer`` that ``other`` lacks or has with another value."""
    return {key: value for key, value in answer.items() if key not in other or other[key] != value}


def _count(step: ScenarioStep) -> int:
    return sum(int(count) for _, count in step["tokens"])


def _said(step: ScenarioStep) -> str:
    return f"{step['do']} {step['request']!r}" if "request" in step else str(step["do"])
