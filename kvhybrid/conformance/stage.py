"""Plays steps on one cache manager as a scheduler would, and checks it after every call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.conformance.invariants import check_backed, check_invariants
from kvhybrid.conformance.oracle import check_hit
from kvhybrid.conformance.records import Records
from kvhybrid.scenarios.form import ScenarioStep
from kvhybrid.scenarios.player import STARTING, Answer, Player
from kvhybrid.scheduling.chunking import PrefillChunking

MOST_DRAFTS = 3


@dataclass
class Tally:
    """Counts of what was played, in one scenario or several."""

    calls: int = 0
    lookups: int = 0
    hits: int = 0
    refusals: int = 0

    def add(self, other: Tally) -> None:
        self.calls += other.calls
        self.lookups += other.lookups
        self.hits += other.hits
        self.refusals += other.refusals


class Stage:
    """Plays the steps of a scenario on ``manager``, and checks its answers against brute force, the invariants and
    its records.

    ``steps`` collects the played steps as a scenario. Subclasses extend `check`.
    """

    def __init__(self, manager: KVCacheManager) -> None:
        self.player = Player(manager)
        self.manager = manager
        self.steps: list[ScenarioStep] = []
        self.records = Records(manager)
        self.tally = Tally()
        self.looked_up: tuple[str, Answer] | None = None
        """If the last call was a look-up, its request and answer, whose hit can be adopted now."""
        self.has_states = any(group.spec.state for group in manager.config.groups)
        self._chunking = PrefillChunking(manager.coordinator)

    @property
    def requests(self) -> Mapping[str, Request]:
        """Every request that was submitted, by name."""
        return self.player.requests

    # ---- valid steps

    def fitted(self, step: ScenarioStep) -> ScenarioStep | None:
        """``step`` limited to what a scheduler could do now; None if it is not possible."""
        do, request = step["do"], self.requests.get(step.get("request", ""))
        if do == "evict":
            known = [block for block in step["blocks"] if block < self.manager.config.num_blocks]
            return {**step, "blocks": known} if known else None
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
            added = sum(int(count) for _, count in step["tokens"])
            return computed >= request.num_tokens and request.num_tokens + added <= self.manager.max_model_len
        if do == "reject":
            return bool(computed - step["tokens"] >= request.num_tokens - 1 > 0)
        return bool(do == "preempt" or step["tokens"] <= computed)

    def _fitted_allocation(self, step: ScenarioStep, request: Request) -> ScenarioStep | None:
        manager, starting = self.manager, request.status in STARTING
        hit = 0
        if starting and not request.num_computed_tokens:
            if self.looked_up is None or self.looked_up[0] != request.request_id:
                return None
            hit = self.looked_up[1]["hit_tokens"]
        elif request.status not in (*STARTING, RequestStatus.RUNNING):
            return None
        start, external = request.num_computed_tokens + hit, step.get("external_tokens", 0)
        if external and (not starting or request.num_computed_tokens or start + external >= request.num_tokens):
            return None
        if external and start % manager.config.scheduler_block_size:
            return None  # a loader fills whole blocks
        start += external
        decoding = start >= request.num_tokens - 1 and not starting
        room = request.num_tokens + (MOST_DRAFTS if decoding and not self.has_states else 0)
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
        """Play a fitted step. Returns the answer.

        Raises:
            Violation: The last of ``steps`` broke a contract.
        """
        step = {key: value for key, value in step.items() if key != "expect"}
        self.steps.append(step)
        self.tally.calls += 1
        looked_up, self.looked_up = self.looked_up, None
        answer = self.answer(step)
        self.check(step, answer, looked_up[1] if looked_up and step["do"] == "allocate" else {})
        self.tally.refusals += int("refused" in answer)
        if step["do"] == "lookup":
            self.looked_up = (step["request"], answer)
        return answer

    def answer(self, step: ScenarioStep) -> Answer:
        """The manager's answer to a step."""
        return self.player.play(step)

    def check(self, step: ScenarioStep, answer: Answer, adopted: Answer) -> None:
        """Check everything after a call; ``adopted`` is the answer of the look-up whose hit an allocation was
        given.

        Raises:
            Violation: A check failed.
        """
        self.check_lookup(step, answer)
        self.check_state(step, answer)

    def check_lookup(self, step: ScenarioStep, answer: Answer) -> None:
        """Check a look-up against brute force."""
        if step["do"] == "lookup":
            self.tally.lookups += 1
            self.tally.hits += int(answer["hit_tokens"] > 0)
            check_hit(self.manager, self.requests[step["request"]], answer)

    def check_state(self, step: ScenarioStep, answer: Answer) -> None:
        """Check the invariants, the records, and the blocks of a granted step."""
        check_invariants(self.manager)
        self.records.check()
        if "new_blocks" in answer:
            request = self.requests[step["request"]]
            end = request.num_computed_tokens
            check_backed(self.manager, request, end - step["new_tokens"], end, step.get("lookahead", 0))
