"""One run: creates the engine, feeds it a workload, and writes metrics and the run folder."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.engine.quality import Quality, measure
from kvhybrid.errors import InputError
from kvhybrid.managers.eviction import orders
from kvhybrid.managers.retention import retention_policies
from kvhybrid.planning import PlanningError
from kvhybrid.planning.memory_meter import MemoryMeter
from kvhybrid.plugins import PluginError, path_of
from kvhybrid.report.answers import print_answers, to_json_lines
from kvhybrid.report.plan_figures import PlanFigures
from kvhybrid.report.progress import Progress
from kvhybrid.report.summary import RunSummary, describe_groups
from kvhybrid.run_folder import RunFolder
from kvhybrid.scenarios.recorder import Recorder
from kvhybrid.scheduling import schedulers
from kvhybrid.scheduling.base import CapacityError
from kvhybrid.sessions.invocation import Invocation
from kvhybrid.sessions.refusal import refusal
from kvhybrid.sessions.run_settings import RunSettings
from kvhybrid.sessions.session import Session
from kvhybrid.settings.values import MOST_TOKENS, at_least
from kvhybrid.workloads.base import Traffic, WorkloadRequest, check_sizes

if TYPE_CHECKING:
    from kvhybrid.engine.engine import Engine
    from kvhybrid.models.base import HybridModel

NO_MEMORY = re.compile("allocate|out of memory|overflow")
"""Messages of torch if a tensor does not fit: on a CPU, it has no specific exception for this."""


def run(settings: RunSettings, folder: Path | str, invocation: Invocation | None = None) -> RunSummary:
    """Run ``settings.workload`` on ``settings.model`` and write ``folder``, which is created if necessary.

    ``invocation`` is written to ``config.yaml`` and sent to the trackers; by default, it has the settings as plain
    data. Ctrl-C and SIGTERM end the run early but gracefully. The summary's status is ``failed`` if some results
    could not be written, some requests failed, or the workload sent fewer requests than it states.

    Raises:
        InputError: The settings are inconsistent. Nothing is written then.
        FolderTakenError: ``folder`` is not empty, or another process is writing to it.
        OutputError: ``folder`` cannot be written to.
        RunError: The run could not continue, for example because the scheduler makes no progress.
    """
    place = RunFolder(folder)
    invocation = invocation or Invocation.from_settings("run", settings)
    with place.claimed(invocation.overrides):
        place.require_empty()
        if settings.record is not None:
            place.refuse_own("record", settings.record)
        recorder = _recorder(settings)
        engine = build_engine(settings, recorder.manager if recorder else KVCacheManager)
        quality = measure_quality(settings, engine)
        session = _RunSession(settings, engine, place, invocation, quality, recorder)
        session.send_ready()
        return session.run()


def build_engine(settings: RunSettings, cache_manager: Callable[..., KVCacheManager] = KVCacheManager) -> Engine:
    """Create the engine, with the cache manager that ``cache_manager`` returns. Raises `InputError` for
    inconsistent settings."""
    import torch

    from kvhybrid.engine.engine import Engine

    if settings.model.cpu_threads is not None:
        torch.set_num_threads(settings.model.cpu_threads)
    _check_device(settings.device)
    try:
        settings.workload.prepare(settings.model.text_codec)
        check_sizes(settings.workload)
        longest = settings.workload.longest_request
        at_least("workload: requests times the longest", settings.workload.num_requests * longest, 1, MOST_TOKENS)
        if _measures_quality(settings):
            longest = max(longest, settings.quality.longest_request)
        model = settings.model.build(settings.backends.choice())
        if model.max_encoder_tokens:
            raise InputError(
                f"model: {type(model).__name__} needs encoder inputs, which this verb does not support; "
                f"call kvhybrid.engine.engine.Engine from Python"
            )
        max_model_len = settings.scheduler.max_model_len or min(longest, model.max_model_len)
        if longest > max_model_len:
            raise InputError(
                f"{_longest_name(settings)} has {longest} tokens, more than the {max_model_len} of "
                f"{'scheduler.max_model_len' if settings.scheduler.max_model_len else 'the model'}"
            )
        return Engine(
            model,
            block_size=settings.pool.block_size,
            hash_block_size=settings.pool.hash_block_size,
            num_blocks=settings.pool.num_blocks,
            memory_bytes=_memory_bytes(settings, model, max_model_len),
            enable_prefix_caching=settings.pool.enable_prefix_caching,
            max_batched_tokens=settings.scheduler.max_batched_tokens,
            max_num_seqs=settings.scheduler.max_num_seqs,
            max_model_len=max_model_len,
            watermark=settings.scheduler.watermark,
            retention_interval=settings.retention.interval,
            retention=retention_policies.maker(settings.retention.kind, **settings.retention.parameters),
            eviction=orders.maker(settings.eviction.kind, **settings.eviction.parameters),
            scheduler=schedulers.maker(settings.scheduler.kind, **settings.scheduler.parameters),
            layout=settings.layout,
            eos_token_id=settings.workload.end_token_ids,
            device=settings.device,
            cache_manager=cache_manager,
        )
    except (ValueError, OSError, ImportError) as error:
        raise refusal(error, _quality_hint(settings, error)) from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not NO_MEMORY.search(str(error)):
            raise
        raise InputError(f"not enough memory for model and pool: {str(error).splitlines()[0]}") from error


def _memory_bytes(settings: RunSettings, model: HybridModel, max_model_len: int) -> int | None:
    """The bytes of the pool, measured if the settings ask for it; None if it has a number of blocks."""
    pool = settings.pool
    if not pool.memory_is_measured:
        return pool.memory_bytes
    if not settings.device.startswith("cuda"):
        raise InputError(f"pool.memory=auto measures a GPU; with device={settings.device}, give a number of bytes")
    from kvhybrid.engine.memory_profile import profile_memory

    profile = profile_memory(
        model,
        settings.device,
        max_batched_tokens=settings.scheduler.max_batched_tokens,
        max_num_seqs=settings.scheduler.max_num_seqs,
        max_model_len=max_model_len,
        block_size=settings.pool.block_size,
    )
    return profile.cache_bytes(pool.utilization, pool.reserve_bytes)


def _quality_hint(settings: RunSettings, error: Exception) -> str:
    """A hint for the error if the longest request comes from the quality measurement."""
    if isinstance(error, PlanningError) and _longest_name(settings) != settings.workload.longest_name:
        return f" The longest request is {_longest_name(settings)}; quality=none skips the measurement."
    return ""


def measure_quality(settings: RunSettings, engine: Engine) -> Quality | None:
    """How well the engine's model predicts ``settings.quality``; None if not requested or meaningless."""
    if not _measures_quality(settings):
        return None
    try:
        return measure(engine, settings.model.text_codec(), settings.quality.texts())
    except ValueError as error:
        raise InputError(" ".join(str(error).split())) from error


def _measures_quality(settings: RunSettings) -> bool:
    """Without an explicit text, models that do not read text or are untrained are skipped."""
    quality, model = settings.quality, settings.model
    return bool(quality.bytes and model.is_trained and (quality.path is not None or model.reads_text))


def _quality_note(settings: RunSettings) -> str | None:
    """Why the quality that was asked for is not measured; None if it is."""
    if not settings.quality.bytes or _measures_quality(settings):
        return None
    reason = "the model does not read text" if settings.model.is_trained else "the model's weights are random"
    return f"quality was not measured: {reason}"


def _longest_name(settings: RunSettings) -> str:
    workload, quality = settings.workload, settings.quality
    if _measures_quality(settings) and quality.longest_request > workload.longest_request:
        return f"an excerpt of quality.excerpt_bytes={quality.excerpt_bytes}"
    name: str = workload.longest_name
    return name


def _check_device(name: str) -> None:
    """Raise `InputError` for a device that is unknown to torch or not available."""
    import torch

    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device: {name!r} cannot be used: {str(error).splitlines()[0]}") from error


def backends_of(model: HybridModel) -> dict[str, list[str]]:
    """The kernel backends that the layers of ``model`` run on, by kind of backend."""
    from kvhybrid.models.layers.cached import CachedLayer, SharingLayer

    found: dict[str, set[str]] = {}
    for layer in model.modules():
        if isinstance(layer, (CachedLayer, SharingLayer)):
            running = layer.backend.running
            found.setdefault(running.noun.removesuffix(" backend"), set()).add(running.name)
    return {noun: sorted(names) for noun, names in found.items()}


def _recorder(settings: RunSettings) -> Recorder | None:
    if settings.record is None:
        return None
    return Recorder(Path(settings.record), id=settings.name)


class _RunSession(Session[RunSummary]):
    """The state of one run between the steps."""

    def __init__(
        self,
        settings: RunSettings,
        engine: Engine,
        folder: RunFolder,
        invocation: Invocation,
        quality: Quality | None,
        recorder: Recorder | None,
    ) -> None:
        super().__init__(
            folder,
            invocation,
            name=settings.name,
            objective=settings.objective,
            num_requests=settings.workload.num_requests,
            trackers=settings.tracking,
        )
        self.settings = settings
        self.engine = engine
        self.quality = quality
        self.groups = describe_groups(engine.plan.config)
        self.traffic: Traffic = settings.workload.traffic(engine.model.vocab_size)
        if not isinstance(self.traffic, Traffic):
            name = path_of(type(settings.workload))
            raise PluginError(f"workload {name}: traffic() must return a Traffic, found {self.traffic!r:.60}")
        self.recorder = recorder
        self.outputs: dict[str, list[int]] = {}
        self.failures: dict[str, str] = {}
        self.cache = engine.stats()
        self.memory = MemoryMeter(engine.plan)
        self.num_sent = self.num_finished = self.prompt_tokens = self.output_tokens = 0

    def send_ready(self) -> None:
        """Queue the requests that the workload can send now."""
        from kvhybrid.engine.sampling import SamplingParams

        sampling = self.settings.sampling
        for request in self.traffic.ready():
            if not isinstance(request, WorkloadRequest):
                raise PluginError(f"{path_of(type(self.traffic))}: ready() has returned {request!r:.60}")
            try:
                self.engine.add_request(
                    request.prompt_token_ids,
                    max_new_tokens=request.max_new_tokens,
                    sampling=SamplingParams(
                        sampling.temperature, sampling.top_k, self.settings.seed + self.num_sent
                    ),
                    request_id=request.request_id,
                )
            except ValueError as error:
                raise InputError(f"workload {path_of(type(self.settings.workload))}: {error}") from error
            self.outputs[request.request_id] = []
            self.num_sent += 1
            self.prompt_tokens += len(request.prompt_token_ids)

    def work(self, progress: Progress) -> None:
        while self.engine.has_unfinished:
            self._step(progress)

    def incomplete(self) -> str | None:
        if self.num_sent != self.num_requests:
            workload = path_of(type(self.settings.workload))
            return (
                f"workload {workload} has sent {self.num_sent} of the {self.num_requests} requests that it states"
            )
        if self.failures:
            first = next(iter(self.failures.values()))
            return f"{len(self.failures)} of {self.num_sent} requests failed: {first}"
        return None

    def _step(self, progress: Progress) -> None:
        try:
            output = self.engine.step()
        except CapacityError as error:
            raise InputError(str(error)) from error
        for request_id, tokens in output.tokens.items():
            self.outputs[request_id] += tokens
            self.output_tokens += len(tokens)
        self.failures.update(output.failed)
        for request_id in (*output.finished, *output.failed):
            self.traffic.finished(request_id, self.outputs.pop(request_id))
        self.num_finished += len(output.finished)
        self.send_ready()
        self.cache = output.stats.cache
        self.history.add(output.stats)
        recent = self.recent_rates.add(output.stats.cache)
        self.trackers.log(output.stats.step, {**output.stats.metrics(), **recent, **self.memory.add(self.cache)})
        progress.update(output.stats, self.num_finished)

    def summarize(self, **ending: Any) -> RunSummary:
        return RunSummary(
            groups=self.groups,
            cache=self.cache,
            requests=self.num_finished,
            failures=self.failures,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            steps=self.history.num_steps,
            preemptions=self.history.preemptions,
            quality=self.quality,
            plan=PlanFigures.from_plan(self.engine.plan),
            memory=self.memory.figures(),
            **ending,
        )

    def backends(self) -> dict[str, list[str]]:
        return backends_of(self.engine.model)

    def writes(self) -> dict[str, Callable[[], None]]:
        writes = {}
        answers = self.traffic.answers()
        if answers:
            writes["outputs.jsonl"] = lambda: self.folder.write_text("outputs.jsonl", to_json_lines(answers))
        if self.recorder is not None:
            writes[str(self.recorder.path)] = self.recorder.close
        return writes

    def report(self, summary: RunSummary) -> None:
        answers = self.traffic.answers()
        shown = answers[: self.traffic.num_shown]
        print_answers(shown)
        if len(shown) < len(answers):
            print(f"{len(answers) - len(shown)} more in outputs.jsonl\n")
        super().report(summary)
        if note := _quality_note(self.settings):
            print(note)
