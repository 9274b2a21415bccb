"""`Stage`, with everything else that a cache manager must do: what pages hold, what a call may change, what is
recorded. It imposes an engine's order on the traffic: a request is scheduled once a step, and the step is executed
before anything that comes after it."""

from __future__ import annotations

from random import Random

from hypothesis import event, note

from kvhybrid.cache.blocks import ComputedBlocks
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request
from kvhybrid.conformance.invariants import check_invariants
from kvhybrid.conformance.stage import Stage
from kvhybrid.conformance.traffic import Traffic
from kvhybrid.scenarios.form import ScenarioStep
from kvhybrid.scenarios.player import STARTING, Answer
from tests.kvhybrid.cache.contents import Contents, Scheduled
from tests.kvhybrid.cache.snapshots import (
    APART,
    Snapshot,
    assert_only_dead_blocks_left,
    page_copies,
    snapshot,
)

ENDS_A_STEP = ("new_step", "take_copies", "free", "preempt", "load_done", "append", "reject")


class CheckedCache(Stage):
    """One cache manager, over any number of pools."""

    def __init__(self, manager: KVCacheManager) -> None:
        super().__init__(manager)
        self.contents = Contents(manager)
        self.seen: set[str] = set()
        """What happened at all, for the statistics of a test."""
        self._loads_from: dict[str, int] = {}
        manager.new_step_starts()

    def play(self, step: ScenarioStep) -> Answer:
        request_id = step.get("request", "")
        again = step["do"] == "allocate" and self.contents.is_scheduled(request_id)
        if (again or step["do"] in ENDS_A_STEP) and (self.contents.step or page_copies(self.manager)):
            self.execute()
        note(str(step))
        return self.call(step)

    def execute(self) -> None:
        """Copies, then the step. A hit that was looked up before may still be adopted."""
        copies, looked_up = page_copies(self.manager), self.looked_up
        assert [(source % APART, target % APART) for source, target in copies] == self.manager.take_copies()
        self.contents.copy(copies)
        self.seen.update(["copy"] if copies else [])
        super().play({"do": "take_copies"})
        self.looked_up = looked_up
        assert not self.manager.take_copies()
        self.contents.execute()

    def call(self, step: ScenarioStep) -> Answer:
        """One call, with what it may change."""
        before, request = snapshot(self.manager), self.requests.get(step.get("request", ""))
        computed = request.num_computed_tokens if request else 0
        starting = request is not None and request.status in STARTING
        if step["do"] == "load_done" and request is not None:
            self.loaded(request, self._loads_from.pop(request.request_id), computed)
        answer = super().play(step)
        if request is None:
            self._check_pools(step, answer, before)
        elif step["do"] == "lookup":
            self._check_lookup(request, before)
        elif step["do"] == "allocate":
            self._check_allocation(step, answer, before, request, computed, starting)
        elif step["do"] == "append":
            added = sum(count for _, count in step["tokens"])
            self.contents.accept(request, request.num_tokens - added, min(computed, request.num_tokens))
        return answer

    # ---- what happened, for subclasses

    def loaded(self, request: Request, start: int, end: int) -> None:
        """Tokens ``[start, end)`` came from outside."""
        self.contents.load(Scheduled(request, start, end, end))

    def granted(self, request: Request, main: int) -> None:
        """A step that computes up to token ``main`` was granted."""

    # ---- what a call may change

    def _check_pools(self, step: ScenarioStep, answer: Answer, before: Snapshot) -> None:
        after = snapshot(self.manager)
        if step["do"] == "evict":
            assert (after.queue, after.refs, after.tables) == (before.queue, before.refs, before.tables)
            assert after.keys == {b: keys for b, keys in before.keys.items() if b not in step["blocks"]}
            for g, group in enumerate(self.manager.config.groups):
                if group.private_blocks:
                    self.manager.evict_blocks([step["blocks"][0] % group.private_blocks], group=g)
            check_invariants(self.manager)
        elif step["do"] == "reset":
            assert answer["ok"] is (not before.refs)
            assert after.queue == before.queue
            assert after.keys == ({} if answer["ok"] else before.keys)

    def _check_lookup(self, request: Request, before: Snapshot) -> None:
        manager, found = self.manager, self.player.looked_up[request.request_id]
        again = manager.get_computed_blocks(request)
        assert again.blocks.get_block_ids() == found.blocks.get_block_ids()
        assert again[1:] == found[1:]
        assert snapshot(manager) == before, "a look-up changes nothing"
        self.check_causes(request, found)

    def check_causes(self, request: Request, found: ComputedBlocks) -> None:
        """Every token of the request was hit or has one cause, in every group."""
        hit = found.blocks
        if request.skip_reading_prefix_cache or self.manager.coordinator.ledger is None:
            assert hit.causes is None
            return
        assert hit.causes is not None
        for group, own, causes in zip(self.manager.config.groups, hit.own_tokens, hit.causes, strict=True):
            assert min(causes) >= 0, f"{group.spec.kind}: {causes}"
            assert found.num_tokens + causes.total == request.num_tokens, f"{group.spec.kind}: {causes}"
            assert own >= found.num_tokens or not group.spec.cacheable
            self.seen.update(name for name, tokens in causes.by_name().items() if tokens)

    def _check_allocation(
        self, step: ScenarioStep, answer: Answer, before: Snapshot, request: Request, computed: int, starting: bool
    ) -> None:
        external, new = step.get("external_tokens", 0), step["new_tokens"]
        if "refused" in answer:
            self.seen.add("refused waiting" if starting else "refused running")
            settled = max(0, computed - request.num_in_flight_tokens)
            assert_only_dead_blocks_left(self.manager, before, snapshot(self.manager), request.request_id, settled)
            return
        main = request.num_computed_tokens
        total, local = main - new, main - new - external
        hit = local - computed
        happened = {"hit": hit, "hit inside a block": hit % max(self.manager.config.block_sizes)}
        happened["delayed load" if step.get("delay_cache") else "load"] = external
        self.seen.update(what for what, tokens in happened.items() if tokens)
        if starting and step.get("has_running", True):
            free_before = sum(1 for page in before.queue if page < APART)
            assert self.manager.num_free_blocks >= min(self.manager.watermark_blocks, free_before)
        if step.get("delay_cache"):
            self._loads_from[request.request_id] = local
            self.contents.step.append(Scheduled(request, total, total, total))
        else:
            self.contents.step.append(Scheduled(request, local, total, main))
            self.granted(request, main)


def play(cache: CheckedCache, seed: int, actions: int) -> None:
    """Random traffic, wound up; Hypothesis is told what happened."""
    traffic = Traffic(cache, Random(seed))
    traffic.run(actions)
    cache.records.check()
    assert not any(cache.records.keys)
    for seen in sorted(cache.seen):
        event(seen)
