"""One run: build the engine, feed it a workload, watch the cache, write the run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, is_dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.engine.quality import Quality, measure
from kvhybrid.errors import InputError
from kvhybrid.planning import PlanningError
from kvhybrid.report.answers import print_answers, to_json_lines
from kvhybrid.report.history import History
from kvhybrid.report.plot import plot_run
from kvhybrid.report.progress import Progress
from kvhybrid.report.summary import RunSummary, describe_groups
from kvhybrid.report.table import print_run
from kvhybrid.run_folder import RunFolder
from kvhybrid.scenarios.recorder import Recorder
from kvhybrid.sessions.run_settings import RunSettings
from kvhybrid.tracking import Trackers
from kvhybrid.workloads import Traffic

if TYPE_CHECKING:
    from kvhybrid.engine.engine import Engine


def run(
    settings: RunSettings,
    folder: Path | str,
    *,
    config: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
) -> RunSummary:
    """Run ``settings.workload`` on ``settings.model`` and fill ``folder``, which is made if it is not there.

    ``config`` is what ``config.yaml`` and the trackers get: by default the settings as plain data.
    ``overrides`` say what the command line changed in it; they tell the jobs of a sweep apart. Ctrl-C ends the
    run early but in order. Raises `InputError` for settings that do not go together, before anything is
    written.
    """
    place = RunFolder(folder)
    place.require_empty()
    recorder = _recorder(settings)
    engine = build_engine(settings, recorder.manager if recorder else KVCacheManager)
    quality = measure_quality(settings, engine)
    session = _Session(settings, engine, place, config or plain_settings(settings), overrides, quality, recorder)
    session.send_ready()
    return session.run()


def build_engine(settings: RunSettings, cache_manager: Callable[..., KVCacheManager] = KVCacheManager) -> Engine:
    """The engine that ``settings`` describe, with what ``cache_manager`` makes. Raises `InputError` where they do
    not go together."""
    import torch

    from kvhybrid.engine.engine import Engine

    if settings.model.cpu_threads is not None:
        torch.set_num_threads(settings.model.cpu_threads)
    _check_device(settings.device)
    try:
        settings.workload.prepare(settings.model.text_codec)
        longest = settings.workload.longest_request
        if _measures_quality(settings):
            longest = max(longest, settings.quality.longest_request)
        model = settings.model.build(settings.backends.choice())
        if model.max_encoder_tokens:
            raise InputError(
                f"model: {type(model).__name__} reads an encoder, and this verb has no encoder inputs to give; "
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
            memory_bytes=settings.pool.memory_bytes,
            enable_prefix_caching=settings.pool.enable_prefix_caching,
            max_batched_tokens=settings.scheduler.max_batched_tokens,
            max_num_seqs=settings.scheduler.max_num_seqs,
            max_model_len=max_model_len,
            watermark=settings.scheduler.watermark,
            retention_interval=settings.retention.interval,
            eviction=settings.eviction.order,
            eos_token_id=settings.workload.end_token_ids,
            device=settings.device,
            cache_manager=cache_manager,
        )
    except (ValueError, OSError, ImportError) as error:
        raise InputError(" ".join(f"{error}{_quality_hint(settings, error)}".split())) from error


def _quality_hint(settings: RunSettings, error: Exception) -> str:
    """Where the longest request is not one of the workload's, what asks for it."""
    if isinstance(error, PlanningError) and _longest_name(settings) != settings.workload.longest_name:
        return f" The longest request is {_longest_name(settings)}; quality=none measures none."
    return ""


def measure_quality(settings: RunSettings, engine: Engine) -> Quality | None:
    """How well the engine's model predicts ``settings.quality``; None where that is not asked for or pointless."""
    if not _measures_quality(settings):
        return None
    try:
        return measure(engine, settings.model.text_codec(), settings.quality.texts())
    except ValueError as error:
        raise InputError(" ".join(str(error).split())) from error


def _measures_quality(settings: RunSettings) -> bool:
    """Where no text is named, a model that reads none, or has learned nothing, is not asked."""
    quality, model = settings.quality, settings.model
    return bool(quality.bytes and model.is_trained and (quality.path is not None or model.reads_text))


def _longest_name(settings: RunSettings) -> str:
    workload, quality = settings.workload, settings.quality
    if _measures_quality(settings) and quality.longest_request > workload.longest_request:
        return f"an excerpt of quality.excerpt_bytes={quality.excerpt_bytes}"
    name: str = workload.longest_name
    return name


def _check_device(name: str) -> None:
    """Raises `InputError` for a device that torch does not know or that this machine lacks."""
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device: {name!r} cannot be used: {str(error).splitlines()[0]}") from error


def plain_settings(value: Any) -> Any:
    """Settings as dicts, lists and values; an object that is neither goes by the name of its class."""
    if is_dataclass(value) and not isinstance(value, type):
        content = {field.name: plain_settings(getattr(value, field.name)) for field in fields(value)}
        return content if isinstance(value, RunSettings) else {"class": type(value).__qualname__, **content}
    if isinstance(value, Mapping):
        return {str(key): plain_settings(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_settings(entry) for entry in value]
    known = value is None or isinstance(value, (str, int, float))
    return value if known else getattr(value, "__qualname__", type(value).__qualname__)


def _recorder(settings: RunSettings) -> Recorder | None:
    if settings.record is None:
        return None
    if Path(settings.record).is_dir():
        raise InputError(f"record must be a file to write, found a folder: {settings.record}")
    if not Path(settings.record).resolve().parent.is_dir():
        raise InputError(f"record: no such folder: {Path(settings.record).resolve().parent}")
    return Recorder(Path(settings.record), id=settings.name)


class _Session:
    """The state of one run between the steps."""

    def __init__(
        self,
        settings: RunSettings,
        engine: Engine,
        folder: RunFolder,
        config: Mapping[str, Any],
        overrides: Sequence[str],
        quality: Quality | None,
        recorder: Recorder | None,
    ) -> None:
        self.settings = settings
        self.engine = engine
        self.folder = folder
        self.config = config
        self.overrides = tuple(overrides)
        self.quality = quality
        self.groups = describe_groups(engine.plan.config)
        self.traffic: Traffic = settings.workload.traffic(engine.model.vocab_size)
        self.trackers = Trackers(settings.tracking)
        self.recorder = recorder or nullcontext()
        self.history = History()
        self.outputs: dict[str, list[int]] = {}
        self.failures: dict[str, str] = {}
        self.cache = engine.stats()
        self.num_sent = self.num_finished = self.prompt_tokens = self.output_tokens = 0

    def send_ready(self) -> None:
        """Queue what the workload may send now."""
        from kvhybrid.engine.sampling import SamplingParams

        sampling = self.settings.sampling
        for request in self.traffic.ready():
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
                raise InputError(str(error)) from error
            self.outputs[request.request_id] = []
            self.num_sent += 1
            self.prompt_tokens += len(request.prompt_token_ids)

    def run(self) -> RunSummary:
        """Step until the workload is done; then, or when interrupted, write what was found."""
        from omegaconf import OmegaConf

        self.folder.create()
        self.folder.write_text("config.yaml", OmegaConf.to_yaml(OmegaConf.create(dict(self.config))))
        self.trackers.start(self.config, self.folder.path)
        began, status = perf_counter(), "failed"
        try:
            with self.recorder, Progress(self.settings.name, self.settings.workload.num_requests) as progress:
                while self.engine.has_unfinished:
                    self._step(progress)
            status = "done"
        except KeyboardInterrupt:
            status = "interrupted"
        finally:
            summary = self._summary(status, perf_counter() - began)
            self.trackers.finish(summary.figures())
            self.folder.write_json("summary.json", summary.to_json(self.trackers.failures))
        self._report(summary)
        return summary

    def _step(self, progress: Progress) -> None:
        output = self.engine.step()
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
        self.trackers.log(output.stats.step, output.stats.metrics())
        progress.update(output.stats, self.num_finished)

    def _summary(self, status: str, seconds: float) -> RunSummary:
        return RunSummary(
            name=self.settings.name,
            status=status,
            groups=self.groups,
            cache=self.cache,
            requests=self.num_finished,
            failures=self.failures,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            steps=self.history.num_steps,
            preemptions=self.history.preemptions,
            seconds=seconds,
            folder=self.folder.path,
            overrides=self.overrides,
            quality=self.quality,
        )

    def _report(self, summary: RunSummary) -> None:
        answers = self.traffic.answers()
        if answers:
            self.folder.write_text("outputs.jsonl", to_json_lines(answers))
            shown = answers[: self.traffic.num_shown]
            print_answers(shown)
            if len(shown) < len(answers):
                print(f"{len(answers) - len(shown)} more in outputs.jsonl\n")
        print_run(summary)
        if self.history.num_steps:
            with self.folder.beside("hits.png") as partial:
                plot_run(self.history, summary, partial)
