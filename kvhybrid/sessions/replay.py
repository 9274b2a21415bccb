"""One replay: creates the cache and the scheduler, feeds them a trace, and writes the run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.errors import InputError
from kvhybrid.managers.eviction import orders
from kvhybrid.managers.retention import retention_policies
from kvhybrid.planning import CachePlan, plan_cache
from kvhybrid.planning.memory_meter import MemoryMeter
from kvhybrid.plugins import path_of
from kvhybrid.replay.loop import ReplayLoop
from kvhybrid.replay.prefix_keys import PrefixKeys
from kvhybrid.replay.stats import ReplayStats
from kvhybrid.replay.trace import LoadedTrace, TraceRequest, read_trace
from kvhybrid.report.plan_figures import PlanFigures
from kvhybrid.report.progress import Progress
from kvhybrid.report.summary import describe_groups
from kvhybrid.run_folder import RunFolder
from kvhybrid.scheduling import schedulers
from kvhybrid.scheduling.base import CapacityError
from kvhybrid.sessions.bounds import hit_rate_bounds
from kvhybrid.sessions.curve import Curve, hit_rate_curve
from kvhybrid.sessions.invocation import Invocation
from kvhybrid.sessions.refusal import refusal
from kvhybrid.sessions.replay_settings import ReplaySettings
from kvhybrid.sessions.replay_summary import ReplaySummary
from kvhybrid.sessions.session import Session
from kvhybrid.settings.values import MOST_BLOCKS, at_least


def replay(settings: ReplaySettings, folder: Path | str, invocation: Invocation | None = None) -> ReplaySummary:
    """Replay ``settings.trace`` and write ``folder``, which is created if necessary.

    ``invocation``, interrupts and exceptions are as for `kvhybrid.sessions.run.run`; an unreadable trace raises
    `InputError`.
    """
    place = RunFolder(folder)
    invocation = invocation or Invocation.from_settings("replay", settings)
    with place.claimed(invocation.overrides):
        place.require_empty()
        trace = read_trace(settings.trace)
        plan = build_plan(settings, trace.requests)
        loop = build_loop(settings, trace.requests, plan)
        bounds = hit_rate_bounds(settings, trace.requests, loop.scheduler.cache)
        curve = hit_rate_curve(settings, trace.requests, loop.scheduler.cache, build_loop)
        return _ReplaySession(settings, trace, plan, loop, bounds, curve, place, invocation).run()


def build_plan(settings: ReplaySettings, requests: Sequence[TraceRequest]) -> CachePlan:
    """Plan the cache for ``requests``. Raises `InputError` for inconsistent settings."""
    longest = max(request.num_tokens for request in requests)
    limit = settings.scheduler.max_model_len or longest
    if longest > limit:
        raise InputError(
            f"{settings.trace.place}: the longest request has {longest} tokens, prompt and output together, "
            f"more than the {limit} of scheduler.max_model_len"
        )
    if settings.pool.memory_is_measured:
        raise InputError("pool.memory=auto measures a GPU, and a replay uses none: give a number of bytes")
    try:
        plan = plan_cache(
            settings.cache.layer_specs(settings.pool.block_size, in_bytes=settings.pool.num_blocks is None),
            num_blocks=settings.pool.num_blocks,
            memory_bytes=settings.pool.memory_bytes,
            max_model_len=limit,
            max_in_flight_tokens=settings.scheduler.max_batched_tokens,
            hash_block_size=settings.pool.hash_block_size,
            layout=settings.layout,
        )
        at_least("the pool's number of blocks", plan.config.num_blocks, 2, MOST_BLOCKS)
    except (ValueError, MemoryError) as error:
        raise refusal(error) from error
    return plan


def build_loop(
    settings: ReplaySettings, requests: Sequence[TraceRequest], plan: CachePlan | None = None
) -> ReplayLoop:
    """Create the loop over ``requests`` with the cache of ``plan``, by default that of `build_plan`.

    Raises `InputError` for inconsistent settings.
    """
    plan = plan or build_plan(settings, requests)
    limit = plan.max_model_len
    try:
        cache = KVCacheManager(
            plan.config,
            max_model_len=limit,
            max_in_flight_tokens=settings.scheduler.max_batched_tokens,
            enable_caching=settings.pool.enable_prefix_caching,
            watermark=settings.scheduler.watermark,
            retention_interval=settings.retention.interval,
            retention=retention_policies.maker(settings.retention.kind, **settings.retention.parameters),
            eviction=orders.maker(settings.eviction.kind, **settings.eviction.parameters),
            track_misses=settings.track_misses,
        )
        scheduler = schedulers.maker(settings.scheduler.kind, **settings.scheduler.parameters)(
            cache,
            max_batched_tokens=settings.scheduler.max_batched_tokens,
            max_num_seqs=settings.scheduler.max_num_seqs,
        )
    except (ValueError, MemoryError) as error:
        raise refusal(error) from error
    keys = PrefixKeys(plan.config.hash_unit, settings.trace.part_tokens) if cache.enable_caching else None
    return ReplayLoop(scheduler, settings.executor.arrivals(requests), settings.cost, keys)


class _ReplaySession(Session[ReplaySummary]):
    """The state of one replay between samples."""

    def __init__(
        self,
        settings: ReplaySettings,
        trace: LoadedTrace,
        plan: CachePlan,
        loop: ReplayLoop,
        bounds: Mapping[str, float],
        curve: Curve | None,
        folder: RunFolder,
        invocation: Invocation,
    ) -> None:
        super().__init__(
            folder,
            invocation,
            name=settings.name,
            objective=settings.objective,
            num_requests=len(trace.requests),
            trackers=settings.tracking,
        )
        self.settings = settings
        self.plan = PlanFigures.from_plan(plan)
        self.memory = MemoryMeter(plan)
        self.trace = trace
        self.bounds = bounds
        self.curve = curve
        self.loop = loop
        self.sampled_at = 0.0
        self.sampled_steps = self.sampled_tokens = self.sampled_output = 0

    def work(self, progress: Progress) -> None:
        self.sampled_at = perf_counter()
        try:
            while self.loop.advance(self.settings.sample_every):
                self._sample(progress)
        except CapacityError as error:
            raise InputError(f"{self.settings.trace.place}: {error}") from error
        if self.loop.num_steps > self.sampled_steps:
            self._sample(progress)

    def incomplete(self) -> str | None:
        if self.loop.num_finished == self.num_requests:
            return None
        executor = path_of(type(self.settings.executor))
        return f"executor {executor} has sent {self.loop.num_finished} of the {self.num_requests} requests"

    def _sample(self, progress: Progress) -> None:
        """Record the state of the cache and the counters since the last sample."""
        loop, now = self.loop, perf_counter()
        stats = ReplayStats(
            step=loop.num_steps,
            num_scheduled_tokens=loop.scheduled_tokens - self.sampled_tokens,
            num_new_tokens=loop.output_tokens - self.sampled_output,
            num_running=len(loop.scheduler.running),
            num_waiting=len(loop.scheduler.waiting),
            preemptions=loop.scheduler.num_preemptions,
            seconds=now - self.sampled_at,
            cache=loop.scheduler.cache.stats(),
            num_finished=loop.num_finished,
            modelled_seconds=loop.clock,
            modelled_ttft_mean=loop.first_tokens.mean,
        )
        self.sampled_at, self.sampled_steps = now, loop.num_steps
        self.sampled_tokens, self.sampled_output = loop.scheduled_tokens, loop.output_tokens
        self.history.add(stats)
        self.trackers.log(
            stats.step, {**stats.metrics(), **self.recent_rates.add(stats.cache), **self.memory.add(stats.cache)}
        )
        progress.update(stats, loop.num_finished)

    def summarize(self, **ending: Any) -> ReplaySummary:
        loop = self.loop
        return ReplaySummary(
            groups=describe_groups(loop.scheduler.cache.config),
            cache=loop.scheduler.cache.stats(),
            requests=loop.num_finished,
            prompt_tokens=loop.prompt_tokens,
            output_tokens=loop.output_tokens,
            steps=loop.num_steps,
            preemptions=loop.scheduler.num_preemptions,
            plan=self.plan,
            memory=self.memory.figures(),
            bounds=self.bounds if loop.num_finished == self.num_requests else {},
            skipped_rows=self.trace.skipped,
            modelled={"seconds": loop.clock, **loop.first_tokens.figures()},
            **ending,
        )

    def writes(self) -> Mapping[str, Callable[[], None]]:
        return {} if self.curve is None else self.curve.files(self.folder, self.name)

    def report(self, summary: ReplaySummary) -> None:
        super().report(summary)
        for line in summary.lines():
            print(line)
