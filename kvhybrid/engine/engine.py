"""The engine: runs a hybrid model with its planned cache and the scheduler, step by step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, checked_token_ids
from kvhybrid.cache.stats import CacheStats, StepStats
from kvhybrid.checkpoints import adopt, load_checkpoint
from kvhybrid.engine.batch import build_batch
from kvhybrid.engine.byte_pool import BytePool
from kvhybrid.engine.encoder_inputs import encoder_batch, one_for_each, read_encoder_input, salt_with
from kvhybrid.engine.sampling import SamplingParams, finite_rows, sample
from kvhybrid.models.base import BackendChoice, HybridModel
from kvhybrid.models.checkpoint import end_tokens, read_end_tokens
from kvhybrid.planning import plan_cache
from kvhybrid.planning.planner import LayoutChoice
from kvhybrid.plugins import Choice
from kvhybrid.scheduling import schedulers
from kvhybrid.scheduling.base import CapacityError, SchedulerOutput
from kvhybrid.scheduling.stall import StallDetector

DEFAULT_MEMORY_BYTES = 1 << 30
"""Upper bound on the default pool size, in bytes."""

GREEDY = SamplingParams()


@dataclass(frozen=True)
class StepOutput:
    """The result of one step."""

    tokens: Mapping[str, list[int]]
    """The new tokens of this step by request id; requests in the middle of their prompt are not listed."""
    finished: tuple[str, ...]
    stats: StepStats
    failed: Mapping[str, str] = field(default_factory=dict)
    """Requests that ended because their logits were not finite: id to reason."""


class Engine:
    """Generates tokens for many concurrent requests that share one pool of cache blocks.

    Call `generate` for a list of prompts, or `add_request` and then `stream` or, while `has_unfinished`, `step`.
    """

    @classmethod
    def from_hf(
        cls,
        model_or_path: Any,
        *,
        dtype: torch.dtype | None = None,
        backends: BackendChoice | None = None,
        **options: Any,
    ) -> Engine:
        """Create an engine for a transformers model object, or for a checkpoint folder with ``config.json`` and
        safetensors.

        ``dtype`` is that of weights and cache, by default the model's own, or float32 for a folder. ``backends``
        selects the kernels. A model that no family of ours reads runs with transformers' own code. ``options`` are
        those of `Engine`; unknown ones raise TypeError. If ``eos_token_id`` is not given, it is read from the
        model's generation config or else its config; with None, requests run to their ``max_new_tokens``.
        """
        accepted = [name for name in signature(cls.__init__).parameters if name not in ("self", "model")]
        unknown = sorted(set(options) - set(accepted))
        if unknown:
            raise TypeError(
                f"Engine.from_hf: unknown option {', '.join(unknown)}; "
                f"accepted: dtype, backends, {', '.join(accepted)}"
            )
        if isinstance(model_or_path, (str, Path)):
            model = load_checkpoint(model_or_path, dtype or torch.float32, backends)
            found: Any = read_end_tokens(Path(model_or_path))
        else:
            model = adopt(model_or_path, dtype, backends)
            found = getattr(getattr(model_or_path, "generation_config", None), "eos_token_id", None)
        return cls(model, **{"eos_token_id": found, **options})

    def __init__(
        self,
        model: HybridModel,
        *,
        block_size: int = 16,
        hash_block_size: int | None = None,
        num_blocks: int | None = None,
        memory_bytes: int | None = None,
        max_batched_tokens: int = 512,
        max_num_seqs: int = 16,
        max_model_len: int | None = None,
        max_encoder_tokens: int | None = None,
        enable_prefix_caching: bool = True,
        watermark: float = 0.0,
        retention_interval: int | None = None,
        retention: Choice = "interval",
        eviction: Choice = "lru",
        scheduler: Choice = "default",
        layout: LayoutChoice = "padded",
        track_misses: bool = True,
        eos_token_id: int | Collection[int] | None = None,
        device: torch.device | str = "cpu",
        cache_manager: Callable[..., KVCacheManager] = KVCacheManager,
    ) -> None:
        """``block_size`` is in tokens; planning may raise it to fit a state. ``hash_block_size`` is the number of
        tokens per prefix key; if it is below the block size, a hit on full attention and states can end inside a
        block, which is then copied.

        The pool takes ``memory_bytes``, or those of ``num_blocks`` blocks of the padded layout. By default it fits
        ``max_num_seqs`` requests of ``max_model_len`` tokens, but takes at most `DEFAULT_MEMORY_BYTES`.

        ``max_model_len`` bounds prompt and output together; by default it is the model's own. ``eos_token_id``,
        one token or several, ends a request; without it, every request runs to its ``max_new_tokens``. With
        ``track_misses``, every prompt token that was not hit is counted under its cause.

        ``retention``, ``eviction``, ``scheduler`` and ``layout`` are plug-ins: a registered name,
        ``module:Class``, or a callable that creates one.

        ``max_encoder_tokens`` bounds the encoder tokens of one request of an encoder-decoder model; by default it
        is the model's own. Encoder tokens do not count towards ``max_batched_tokens``.

        ``cache_manager`` is called to make the cache manager, with the arguments of `KVCacheManager`; with
        `Recorder.manager`, its calls are recorded.

        Raises ValueError for inconsistent options, and PlanningError if one request of ``max_model_len`` tokens
        does not fit in the pool.
        """
        _check_options(model, block_size, max_model_len, max_encoder_tokens)
        self.model = model.to(device).eval()
        self.device = torch.device(device)
        dtype = next(self.model.parameters()).dtype
        layer_specs = self.model.layer_specs(block_size, dtype)
        encoder_layers = [name for name, spec in layer_specs.items() if spec.source == "encoder"]
        if encoder_layers and not self.model.max_encoder_tokens:
            raise ValueError(f"the model has no encoder, and these layers read one: {', '.join(encoder_layers)}")
        self.max_encoder_tokens = (
            self.model.max_encoder_tokens if max_encoder_tokens is None else max_encoder_tokens
        )
        default = num_blocks is None and memory_bytes is None
        self.plan = plan_cache(
            layer_specs,
            num_blocks=num_blocks,
            memory_bytes=DEFAULT_MEMORY_BYTES if default else memory_bytes,
            most_requests=max_num_seqs if default else None,
            hash_block_size=hash_block_size,
            max_model_len=max_model_len or self.model.max_model_len,
            max_encoder_tokens=self.max_encoder_tokens if encoder_layers else None,
            max_in_flight_tokens=max_batched_tokens,
            page_multiple=block_size,
            layout=layout,
        )
        self.pool = BytePool(self.plan, self.device)
        self.model.bind_cache(self.pool.views())
        self.cache = cache_manager(
            self.plan.config,
            max_model_len=self.plan.max_model_len,
            max_in_flight_tokens=max_batched_tokens,
            enable_caching=enable_prefix_caching,
            watermark=watermark,
            retention_interval=retention_interval,
            retention=retention,
            eviction=eviction,
            track_misses=track_misses,
        )
        self.scheduler = schedulers.maker(scheduler)(
            self.cache,
            max_batched_tokens=max_batched_tokens,
            max_num_seqs=max_num_seqs,
            end_token_ids=end_tokens(eos_token_id),
        )
        self._stall = StallDetector(self.scheduler)
        self._sampling: dict[str, SamplingParams] = {}
        self._names = (f"request-{number}" for number in count())
        self._num_steps = 0

    @property
    def has_unfinished(self) -> bool:
        return self.scheduler.has_unfinished

    def add_request(
        self,
        prompt_token_ids: Sequence[int],
        *,
        encoder_input: Any = None,
        max_new_tokens: int = 16,
        sampling: SamplingParams = GREEDY,
        cache_salt: str | None = None,
        request_id: str | None = None,
    ) -> str:
        """Queue a prompt and return the request's id.

        An encoder-decoder model needs an ``encoder_input``, in the form that its ``read_encoder_input`` accepts.
        The prompt is then the decoder's, including its start token. Requests share cached prefixes only with
        requests of the same encoder input and ``cache_salt``.

        Raises ValueError for an empty or too long prompt, a token outside of the vocabulary, an invalid encoder
        input, or the id of an unfinished request.
        """
        if request_id is None:
            request_id = next(name for name in self._names if name not in self._sampling)
        elif request_id in self._sampling:
            raise ValueError(f"request id {request_id!r} is taken by an unfinished request")
        token_ids = checked_token_ids(request_id, prompt_token_ids)
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self.model.vocab_size:
            raise ValueError(
                f"request {request_id!r}: token ids must lie in [0, {self.model.vocab_size}), "
                f"found {min(token_ids)} to {max(token_ids)}"
            )
        given = read_encoder_input(self.model, request_id, encoder_input, self.max_encoder_tokens)
        if given is not None and self.cache.enable_caching:
            cache_salt = salt_with(given, cache_salt)
        request = Request(
            request_id,
            token_ids,
            max_new_tokens=max_new_tokens,
            cache_salt=cache_salt,
            num_encoder_tokens=given.num_tokens if given else 0,
            encoder_input=given,
            hasher=self.cache.hasher,
        )
        self.scheduler.add_request(request)
        self._sampling[request_id] = sampling
        return request_id

    def step(self) -> StepOutput:
        """Schedule, copy, compute, sample: at most ``max_batched_tokens`` tokens over all requests.

        Raises CapacityError for a request that does not fit in the whole pool; it is dropped, the others continue.
        Raises StalledError if the scheduler makes no progress. If the forward pass fails, all requests are
        recomputed. A request with logits that are not finite ends, and its prefix is removed from the cache.
        """
        began = perf_counter()
        try:
            output = self.scheduler.schedule()
        except CapacityError as error:
            del self._sampling[error.request_id]
            raise
        try:
            sampled, failed = self._execute(output)
        except BaseException:
            self.scheduler.discard_output(output)
            raise
        finished = self.scheduler.update_from_output(output, sampled, failed)
        for request_id in (*finished, *failed):
            del self._sampling[request_id]
        self._stall.check(output)
        self._num_steps += 1
        stats = StepStats(
            step=self._num_steps,
            num_scheduled_tokens=output.num_scheduled_tokens,
            num_new_tokens=len(sampled),
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.waiting),
            preemptions=self.scheduler.num_preemptions,
            seconds=perf_counter() - began,
            cache=self.cache.stats(),
        )
        tokens = {request_id: [token] for request_id, token in sampled.items()}
        return StepOutput(tokens, finished, stats, {name: _not_finite(name) for name in failed})

    def stream(self) -> Iterator[StepOutput]:
        """Step until every request is finished. Requests may be added between steps."""
        while self.has_unfinished:
            yield self.step()

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int = 16,
        *,
        encoder_inputs: Sequence[Any] | None = None,
        sampling: SamplingParams | Sequence[SamplingParams] = GREEDY,
        cache_salt: str | None = None,
    ) -> list[list[int]]:
        """Return the new tokens of every prompt, in order. ``sampling`` is one for all prompts or one per prompt;
        ``encoder_inputs`` has one per prompt.

        Requests that were queued before run too. An error drops the requests of this call. Raises
        FloatingPointError if the logits of one of them are not finite.
        """
        choices = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else list(sampling)
        if len(choices) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts need as many sampling params, found {len(choices)}")
        inputs = one_for_each(encoder_inputs, len(prompts))
        outputs: dict[str, list[int]] = {}
        try:
            for prompt, given, choice in zip(prompts, inputs, choices, strict=True):
                request_id = self.add_request(
                    prompt,
                    encoder_input=given,
                    max_new_tokens=max_new_tokens,
                    sampling=choice,
                    cache_salt=cache_salt,
                )
                outputs[request_id] = []
            while not self._sampling.keys().isdisjoint(outputs):
                step = self.step()
                for request_id in outputs.keys() & step.failed.keys():
                    raise FloatingPointError(step.failed[request_id])
                for request_id, tokens in step.tokens.items():
                    if request_id in outputs:
                        outputs[request_id] += tokens
        except BaseException:
            for request_id in outputs:
                self.abort(request_id)
            raise
        return list(outputs.values())

    def abort(self, request_id: str) -> None:
        """Drop a request and free its blocks; finished and unknown ids are ignored."""
        self.scheduler.abort(request_id)
        self._sampling.pop(request_id, None)

    def stats(self) -> CacheStats:
        return self.cache.stats()

    @torch.inference_mode()
    def _execute(self, output: SchedulerOutput) -> tuple[dict[str, int], list[str]]:
        """Run the step on the device.

        Returns the sampled token of every request whose known tokens are all computed, and the ids of the requests
        whose logits are not finite.
        """
        for kind, pairs in enumerate(self.cache.coordinator.groups.copies_by_pool()):
            self.pool.copy_blocks(pairs, kind)
        if not output.scheduled:
            return {}, []
        if output.admitted and self.model.max_encoder_tokens:
            self.model.encode(encoder_batch(output.admitted, self.cache, self.device))
        batch = build_batch(output.scheduled, self.cache, self.device)
        logits_RV = self.model(batch)
        requests = [item.request for item in output.scheduled if item.samples]
        failed: list[str] = []
        if requests and not all(finite := finite_rows(logits_RV)):
            failed = [request.request_id for request, good in zip(requests, finite, strict=True) if not good]
            requests = [request for request, good in zip(requests, finite, strict=True) if good]
            logits_RV = logits_RV[torch.tensor(finite, device=logits_RV.device)]
        if not requests:
            return {}, failed
        tokens = sample(
            logits_RV,
            [self._sampling[request.request_id] for request in requests],
            [request.num_tokens for request in requests],
        )
        return {request.request_id: token for request, token in zip(requests, tokens, strict=True)}, failed


def _not_finite(request_id: str) -> str:
    return f"request {request_id!r}: the model returned logits that are not finite (NaN or infinite)"


def _check_options(
    model: HybridModel, block_size: int, max_model_len: int | None, max_encoder_tokens: int | None
) -> None:
    if block_size < 1 or block_size % model.page_multiple:
        raise ValueError(
            f"block_size must be a positive multiple of {model.page_multiple} for this model's kernels, "
            f"found {block_size}"
        )
    if model.learned_positions and max_model_len is not None and max_model_len > model.max_model_len:
        raise ValueError(
            f"max_model_len must be at most {model.max_model_len}, the positions that this model has learned, "
            f"found {max_model_len}"
        )
    if max_encoder_tokens is not None and not model.max_encoder_tokens:
        raise ValueError(f"max_encoder_tokens = {max_encoder_tokens} was given, and this model has no encoder")
