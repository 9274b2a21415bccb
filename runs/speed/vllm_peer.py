"""vLLM's side: its v1 cache manager and scheduler, on a CPU. Imports the peer and this folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import torch
from vllm.config import CacheConfig, ObservabilityConfig, ParallelConfig, SchedulerConfig
from vllm.distributed.kv_events import BlockRemoved
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from runs.speed.catalogue import CatalogueSide
from runs.speed.side import ScheduledCache
from runs.speed.trace import Prompt, block_keys, own_copies
from runs.speed.works import BLOCK, MAX_MODEL_LEN, Group


class KeyedRequest:
    """What the cache manager reads of a request, without tokens."""

    lora_request = cache_salt = session_id = None
    prompt_embeds = None
    mm_features: Sequence[Any] = ()
    all_token_ids: Sequence[int] = ()
    skip_reading_prefix_cache = False
    num_in_flight_tokens = num_preemptions = 0

    def __init__(self, request_id: str, num_tokens: int, keys: Sequence[bytes]) -> None:
        self.request_id = request_id
        self.num_tokens = self.num_prompt_tokens = num_tokens
        self.block_hashes = own_copies(keys)
        self.status = RequestStatus.WAITING
        self.num_computed_tokens = self.shared_prefix_boundary = 0


class VLLM(CatalogueSide):
    """vLLM without its prefix statistics and without events."""

    name = "vllm"
    running = RequestStatus.RUNNING
    events = False

    def __init__(self) -> None:
        init_none_hash(sha256)

    def version(self) -> str:
        return f"vllm {version('vllm')}"

    def cache(self, groups: Sequence[Group], num_blocks: int) -> KVCacheManager:
        return KVCacheManager(
            _config(groups, num_blocks),
            enable_kv_cache_events=self.events,
            max_model_len=MAX_MODEL_LEN,
            scheduler_block_size=BLOCK,
            hash_block_size=BLOCK,
        )

    def request(self, request_id: str, num_tokens: int, keys: Sequence[bytes]) -> KeyedRequest:
        return KeyedRequest(request_id, num_tokens, keys)

    def token_request(self, request_id: str, tokens: list[int]) -> Request:
        return Request(request_id, tokens, SamplingParams(max_tokens=16), None)

    def hasher(self) -> Callable[[Any], Any]:
        keys_of = get_request_block_hasher(BLOCK, sha256)

        def extend(request: Any) -> None:
            request.block_hashes.extend(keys_of(request))

        return extend

    def after_request(self, cache: Any) -> Callable[[], Any] | None:
        return None

    def look(self, cache: Any) -> list[int] | None:
        return None

    def scheduler(self, groups: Sequence[Group], num_blocks: int, budget: int, seqs: int) -> VLLMScheduler:
        return VLLMScheduler(_config(groups, num_blocks), budget, seqs)


class VLLMWithEvents(VLLM):
    """With events, which are taken after every request: they tell the evictions."""

    name = "vllm, events"
    events = True

    def __init__(self) -> None:
        super().__init__()
        self._removed: Counter[int] = Counter()

    def after_request(self, cache: KVCacheManager) -> Callable[[], Any]:
        self._removed.clear()

        def take() -> None:
            for event in cache.take_events():
                if isinstance(event, BlockRemoved) and event.group_idx is not None:
                    self._removed[event.group_idx] += len(event.block_hashes)

        return take

    def look(self, cache: KVCacheManager) -> list[int]:
        return [self._removed[group] for group in range(cache.num_kv_cache_groups)]


class VLLMScheduler(ScheduledCache):
    """vLLM's v1 scheduler with the parts of a configuration that it reads, and sampled tokens without a model."""

    def __init__(self, config: KVCacheConfig, budget: int, seqs: int) -> None:
        no_grammar = SimpleNamespace(accept_tokens=lambda request, tokens: True)
        self._scheduler = Scheduler(
            _engine_config(config.num_blocks, budget, seqs), config, no_grammar, BLOCK, hash_block_size=BLOCK
        )
        self._hits: dict[str, int] = {}

    def add(self, prompt: Prompt) -> None:
        keys = (*own_copies(prompt.keys), *block_keys(prompt.request_id, prompt.num_output_tokens // BLOCK + 1))

        def keys_of(request: Request) -> Sequence[bytes]:
            return keys[len(request.block_hashes) : request.num_tokens // BLOCK]

        tokens, params = [0] * prompt.num_tokens, SamplingParams(max_tokens=prompt.num_output_tokens)
        self._scheduler.add_request(Request(prompt.request_id, tokens, params, None, block_hasher=keys_of))

    def run(self) -> int:
        scheduler, requests, steps = self._scheduler, self._scheduler.requests, 0
        while scheduler.has_unfinished_requests():
            output = scheduler.schedule()
            for new in output.scheduled_new_reqs:
                self._hits[new.req_id] = new.num_computed_tokens
            ids = list(output.num_scheduled_tokens)
            sampled = [[] if requests[i].is_prefill_chunk else [0] for i in ids]
            places = {request_id: place for place, request_id in enumerate(ids)}
            scheduler.update_from_output(output, ModelRunnerOutput(ids, places, sampled))
            steps += 1
        return steps

    def hits(self) -> dict[str, int]:
        found, self._hits = self._hits, {}
        return found


def _engine_config(num_blocks: int, budget: int, seqs: int) -> Any:
    """What the scheduler reads of vLLM's configuration. The whole of it would want a model and a device."""
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
    cache.num_gpu_blocks = num_blocks
    nothing = dict.fromkeys(
        ("lora_config", "kv_events_config", "kv_transfer_config", "ec_transfer_config", "speculative_config")
    )
    none_ahead = dict.fromkeys(
        (
            "num_speculative_tokens",
            "num_lookahead_tokens",
            "num_prefill_lookahead_tokens",
            "num_hash_lookahead_tokens",
        ),
        0,
    )
    return SimpleNamespace(
        scheduler_config=SchedulerConfig(
            max_model_len=MAX_MODEL_LEN,
            is_encoder_decoder=False,
            max_num_batched_tokens=budget,
            max_num_seqs=seqs,
            async_scheduling=False,
        ),
        cache_config=cache,
        model_config=SimpleNamespace(
            max_model_len=MAX_MODEL_LEN,
            runner_type="generate",
            uses_mrope=False,
            is_diffusion=False,
            is_encoder_decoder=False,
            supports_multimodal_inputs=False,
            return_sampling_mask=False,
        ),
        parallel_config=ParallelConfig(),
        observability_config=ObservabilityConfig(),
        aux_output_config=SimpleNamespace(enabled=False),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        is_mm_encoder_only=False,
        use_v2_model_runner=False,
        max_in_flight_tokens=budget,
        max_concurrent_batches=1,
        **nothing,
        **none_ahead,
    )


def _config(groups: Sequence[Group], num_blocks: int) -> KVCacheConfig:
    named = [KVCacheGroupSpec([f"{group.kind}{i}"], _spec(group)) for i, group in enumerate(groups)]
    return KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=named)


def _spec(group: Group) -> KVCacheSpec:
    heads: dict[str, Any] = {"block_size": BLOCK, "num_kv_heads": 8, "head_size": 128, "dtype": torch.bfloat16}
    if group.kind == "window":
        return SlidingWindowSpec(sliding_window=group.reach, **heads)
    if group.kind == "chunk":
        return ChunkedLocalAttentionSpec(attention_chunk_size=group.reach, **heads)
    if group.kind == "state":
        return MambaSpec(block_size=BLOCK, shapes=((16, 16),), dtypes=(torch.float32,), mamba_cache_mode="align")
    return FullAttentionSpec(**heads)
