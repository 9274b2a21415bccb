"""The default scheduler: continuous batching with chunked prefill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mypy_extensions import mypyc_attr

from kvhybrid.cache.blocks import PrefixHit
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.scheduling.base import BaseScheduler, CapacityError, ScheduledRequest, SchedulerOutput
from kvhybrid.scheduling.chunking import PrefillChunking


@dataclass
class _Step:
    """A step while it is being scheduled."""

    budget: int
    scheduled: list[ScheduledRequest] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)


@mypyc_attr(allow_interpreted_subclasses=True)
class Scheduler(BaseScheduler):
    """Continuous batching under one token budget, with chunked prefill and preemption by recomputation.

    - Running requests come first, oldest first; then waiting ones are admitted in order, up to
      ``max_num_seqs``.
    - Prefill and decode differ only in the number of remaining tokens, and share ``max_batched_tokens``.
    - A waiting request is admitted only if its whole current sequence fits; the first that does not ends the
      pass, so no request overtakes another.
    - If a running request is refused blocks, the newest running request is preempted: it frees all its blocks and
      goes to the front of the queue; its tokens are recomputed, except those that it finds in the cache. A request
      that would have to preempt itself ends the pass, and a step with a preemption admits no requests.

    So the oldest request always makes progress, and every step ends.
    """

    def __init__(
        self,
        cache: KVCacheManager,
        *,
        max_batched_tokens: int = 512,
        max_num_seqs: int = 16,
        end_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(
            cache,
            max_batched_tokens=max_batched_tokens,
            max_num_seqs=max_num_seqs,
            end_token_ids=end_token_ids,
        )
        self._unfinished: dict[str, Request] = {}
        """Every request in ``waiting`` and ``running``, by id."""
        self._chunking = PrefillChunking(cache.coordinator) if cache.enable_caching else None
        self._lone_refusal: tuple[str, int] | None = None

    def add_request(self, request: Request) -> None:
        if request.request_id in self._unfinished:
            raise ValueError(f"request id {request.request_id!r} is taken by an unfinished request")
        super().add_request(request)
        self._unfinished[request.request_id] = request

    def schedule(self) -> SchedulerOutput:
        self.cache.new_step_starts()
        step = _Step(self.max_batched_tokens)
        try:
            self._schedule_running(step)
            if not step.preempted:
                self._admit_waiting(step)
        except BaseException:
            self._give_up_step()
            raise
        return SchedulerOutput(
            tuple(step.scheduled),
            tuple(self.cache.take_copies()),
            tuple(step.admitted),
            tuple(step.preempted),
            self.max_batched_tokens - step.budget,
        )

    def update_from_output(
        self, output: SchedulerOutput, sampled: Mapping[str, int], failed: Sequence[str] = ()
    ) -> tuple[str, ...]:
        finished: list[str] = []
        try:
            self.cache.release_copies()
            for request_id in failed:
                self._end_failed(request_id)
            for request, start, num_tokens, samples in output.scheduled:
                if failed and request.request_id in failed:
                    continue
                request.num_computed_tokens = start + num_tokens
                if samples:
                    token = sampled[request.request_id]
                    request.append_output_token_ids((token,))
                    if self._is_finished(request, token):
                        self._finish(request)
                        finished.append(request.request_id)
        except BaseException:
            self._give_up_step()
            raise
        if finished:
            self.running = [r for r in self.running if r.status is RequestStatus.RUNNING]
        return tuple(finished)

    def discard_output(self, output: SchedulerOutput) -> None:
        """Undo a step whose forward pass failed: its requests wait to be recomputed, and the blocks that it should
        have written lose their keys."""
        self._give_up_step()

    def _give_up_step(self) -> None:
        """Remove the keys of unwritten blocks and preempt all requests."""
        self.cache.discard_step()
        self.cache.release_copies()
        if self.waiting:
            self.cache.free(self.waiting[0])  # it may have been admitted half-way
        self.running = [r for r in self.running if r.status is RequestStatus.RUNNING]
        while self.running:
            self._preempt_newest()

    def _finish(self, request: Request) -> None:
        """``request`` has ended: free its blocks."""
        request.status = RequestStatus.FINISHED
        self._unfinished.pop(request.request_id, None)
        self.cache.free(request)

    def abort(self, request_id: str) -> None:
        request = self._unfinished.get(request_id)
        if request is not None:
            queue = self.running if request.status is RequestStatus.RUNNING else self.waiting
            queue.remove(request)
            self._finish(request)

    def _end_failed(self, request_id: str) -> None:
        """Drop a running request and every key of its prefix, whichever request computed the block."""
        request = next(request for request in self.running if request.request_id == request_id)
        self.cache.forget(request)
        self.abort(request_id)

    def _is_finished(self, request: Request, token: int) -> bool:
        return (
            request.num_output_tokens >= request.max_new_tokens
            or request.num_tokens >= self.cache.max_model_len
            or token in self.end_token_ids
        )

    def _schedule_running(self, step: _Step) -> None:
        running, allocate_slots, index = self.running, self.cache.allocate_slots, 0
        while index < len(running) and step.budget:
            request = running[index]
            start = request.num_computed_tokens
            left = request.num_tokens - start
            num_tokens = 1 if left == 1 else self._num_step_tokens(request, start, step.budget)
            while allocate_slots(request, num_tokens) is None:
                if len(running) == 1:
                    self._note_lone_refusal(request)
                victim = self._preempt_newest()
                step.preempted.append(victim)
                if victim is request:
                    return
            step.scheduled.append(ScheduledRequest(request, start, num_tokens, num_tokens == left))
            step.budget -= num_tokens
            index += 1

    def _admit_waiting(self, step: _Step) -> None:
        while self.waiting and step.budget and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            computed = self.cache.get_computed_blocks(request)
            request.shared_prefix_boundary = computed.junction
            hit = computed.num_tokens
            num_tokens = self._num_step_tokens(request, hit, step.budget)
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
                num_tokens = self._admit_alone(request, computed.blocks, step.budget)
            self.waiting.popleft()
            self.running.append(request)
            request.status = RequestStatus.RUNNING
            request.num_computed_tokens = hit
            step.admitted.append(request)
            samples = hit + num_tokens == request.num_tokens
            step.scheduled.append(ScheduledRequest(request, hit, num_tokens, samples))
            step.budget -= num_tokens

    def _admit_alone(self, request: Request, given_up: PrefixHit, budget: int) -> int:
        """Admit a request that was refused although no other request holds a block; returns its number of tokens.

        Copying a shared block takes one more block than computing it, so the request may fit without its hit.
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
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(request)
        self.cache.free(request)
        return request

    def _note_lone_refusal(self, request: Request) -> None:
        """Called when the only running request is refused. Restarting it may help once, but never twice."""
        now = (request.request_id, request.num_tokens)
        if self._lone_refusal == now:
            self._preempt_newest()
            self._refuse(request)
        self._lone_refusal = now

    def _refuse(self, request: Request) -> None:
        """Permanently drop the request at the head of the queue."""
        self.waiting.popleft()
        self._finish(request)
        needed = self.cache.blocks_to_finish(request, self._num_step_tokens(request, 0, self.max_batched_tokens))
        need, have = self.cache.coordinator.groups.shortage(needed)
        pools = self.cache.config.pools
        units = pools.unit if pools is not None else "blocks"
        raise CapacityError(
            request.request_id,
            f"request {request.request_id!r} can never fit: its {request.num_tokens} tokens need {need} "
            f"{units} over {len(self.cache.config.groups)} groups, and the whole pool has {have}; "
            f"give the pool more {units}, or the request fewer tokens",
        )
