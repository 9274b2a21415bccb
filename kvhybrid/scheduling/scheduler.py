"""The default scheduler: continuous batching with chunked prefill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mypy_extensions import mypyc_attr

from kvhybrid.cache.blocks import KVCacheBlocks
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.scheduling.base import BaseScheduler, CapacityError, ScheduledRequest, SchedulerOutput
from kvhybrid.scheduling.chunking import PrefillChunking


@dataclass
class _StepPlan:
    """A step while it is being planned."""

    budget: int
    scheduled: list[ScheduledRequest] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)


@mypyc_attr(allow_interpreted_subclasses=True)
class Scheduler(BaseScheduler):
    """Continuous batching under one token budget, with chunked prefill and preemption by recompute.

    - Running requests come first, oldest first; then waiting ones are admitted in order, up to
      ``max_num_seqs``.
    - A prefill and a decode differ in nothing but how many tokens are left, and share ``max_batched_tokens``.
    - A waiting request is admitted only if its whole present sequence fits; the first that does not ends the
      pass, so that nobody is overtaken.
    - When a running request is refused its blocks, the newest running request gives all of its own back and
      goes to the front of the waiting line; its tokens are computed anew, less what it finds in the cache. A
      request that would have to preempt itself ends the pass, and a step that preempted admits nobody.

    The oldest request therefore always moves on, and every step ends.
    """

    def __init__(
        self,
        cache: KVCacheManager,
        *,
        max_batched_tokens: int = 512,
        max_num_seqs: int = 16,
        eos_token_id: int | None = None,
    ) -> None:
        super().__init__(
            cache,
            max_batched_tokens=max_batched_tokens,
            max_num_seqs=max_num_seqs,
            eos_token_id=eos_token_id,
        )
        self._chunking = (
            PrefillChunking(cache.config, cache.coordinator.alignment) if cache.enable_caching else None
        )
        self._lone_refusal: tuple[str, int] | None = None

    def schedule(self) -> SchedulerOutput:
        self.cache.new_step_starts()
        plan = _StepPlan(self.max_batched_tokens)
        self._schedule_running(plan)
        if not plan.preempted:
            self._admit_waiting(plan)
        return SchedulerOutput(
            tuple(plan.scheduled),
            tuple(self.cache.take_copies()),
            tuple(plan.admitted),
            tuple(plan.preempted),
            self.max_batched_tokens - plan.budget,
        )

    def update_from_output(self, output: SchedulerOutput, sampled: Mapping[str, int]) -> tuple[str, ...]:
        self.cache.release_copies()
        finished: list[str] = []
        for request, start, num_tokens, samples in output.scheduled:
            request.num_computed_tokens = start + num_tokens
            if samples:
                token = sampled[request.request_id]
                request.append_output_token_ids((token,))
                if self._is_finished(request, token):
                    request.status = RequestStatus.FINISHED
                    self.cache.free(request)
                    finished.append(request.request_id)
        if finished:
            self.running = [r for r in self.running if r.status is RequestStatus.RUNNING]
        return tuple(finished)

    def discard_output(self, output: SchedulerOutput) -> None:
        """Undo a step whose forward pass failed: preempt everybody and forget every key.

        Blocks get their keys when they are scheduled, so the step left keys on blocks that nobody wrote.
        """
        self.cache.release_copies()
        while self.running:
            self._preempt_newest()
        self.cache.reset_prefix_cache()

    def abort(self, request_id: str) -> None:
        for request in (*self.running, *self.waiting):
            if request.request_id == request_id:
                if request.status is RequestStatus.RUNNING:
                    self.cache.free(request)
                    self.running.remove(request)
                else:
                    self.waiting.remove(request)
                request.status = RequestStatus.FINISHED

    def _is_finished(self, request: Request, token: int) -> bool:
        return (
            request.num_output_tokens >= request.max_new_tokens
            or request.num_tokens >= self.cache.max_model_len
            or token == self.eos_token_id
        )

    def _schedule_running(self, plan: _StepPlan) -> None:
        running, allocate_slots, index = self.running, self.cache.allocate_slots, 0
        while index < len(running) and plan.budget:
            request = running[index]
            start = request.num_computed_tokens
            left = request.num_tokens - start
            num_tokens = 1 if left == 1 else self._num_step_tokens(request, start, plan.budget)
            while allocate_slots(request, num_tokens) is None:
                if len(running) == 1:
                    self._note_lone_refusal(request)
                victim = self._preempt_newest()
                plan.preempted.append(victim)
                if victim is request:
                    return
            plan.scheduled.append(ScheduledRequest(request, start, num_tokens, num_tokens == left))
            plan.budget -= num_tokens
            index += 1

    def _admit_waiting(self, plan: _StepPlan) -> None:
        while self.waiting and plan.budget and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            computed = self.cache.get_computed_blocks(request)
            request.shared_prefix_boundary = computed.junction
            hit = computed.num_tokens
            num_tokens = self._num_step_tokens(request, hit, plan.budget)
            granted = self.cache.allocate_slots(
                request,
                num_tokens,
                hit,
                computed.blocks,
                num_encoder_tokens=request.num_encoder_tokens,
                full_sequence_must_fit=True,
                has_scheduled_reqs=bool(self.running),
            )
            if granted is None:
                if self.running:
                    return
                hit = 0
                num_tokens = self._admit_alone(request, computed.blocks, plan.budget)
            self.waiting.popleft()
            self.running.append(request)
            request.status = RequestStatus.RUNNING
            request.num_computed_tokens = hit
            plan.admitted.append(request)
            samples = hit + num_tokens == request.num_tokens
            plan.scheduled.append(ScheduledRequest(request, hit, num_tokens, samples))
            plan.budget -= num_tokens

    def _admit_alone(self, request: Request, given_up: KVCacheBlocks, budget: int) -> int:
        """Admit a request that was refused although nobody else holds a block; returns its tokens.

        Copying a shared block takes one block more than computing it, so that it may fit without its hit.
        """
        num_tokens = self._num_step_tokens(request, 0, budget)
        granted = self.cache.allocate_slots(
            request,
            num_tokens,
            0,
            given_up,
            num_encoder_tokens=request.num_encoder_tokens,
            full_sequence_must_fit=True,
            has_scheduled_reqs=False,
        )
        if granted is None:
            self._refuse(request)
        return num_tokens

    def _num_step_tokens(self, request: Request, start: int, budget: int) -> int:
        num_tokens = min(request.num_tokens - start, budget)
        if self._chunking is None or num_tokens == 1:
            return num_tokens
        return self._chunking.clip(request, start, num_tokens)

    def _preempt_newest(self) -> Request:
        request = self.running.pop()
        self.cache.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(request)
        return request

    def _note_lone_refusal(self, request: Request) -> None:
        """The only running request was refused. Starting anew may help; a second time it never would."""
        now = (request.request_id, request.num_tokens)
        if self._lone_refusal == now:
            self._preempt_newest()
            self._refuse(request)
        self._lone_refusal = now

    def _refuse(self, request: Request) -> None:
        """Drop the request at the head of the waiting line for good."""
        self.waiting.popleft()
        request.status = RequestStatus.FINISHED
        config = self.cache.config
        needed = sum(
            -(-request.num_encoder_tokens // size)
            if group.spec.source == "encoder"
            else group.spec.admission_blocks(self.max_batched_tokens, request.num_tokens, size)
            for group, size in zip(config.groups, config.block_sizes, strict=True)
        )
        raise CapacityError(
            request.request_id,
            f"request {request.request_id!r} can never fit: its {request.num_tokens} tokens need {needed} "
            f"blocks over {len(config.groups)} groups, and the whole pool has {config.num_blocks - 1}; "
            f"give the pool more blocks, or the request fewer tokens",
        )
