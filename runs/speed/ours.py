"""Our side: kvhybrid's cache manager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from kvhybrid import is_compiled
from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.hashing import PrefixHasher
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.managers.prefix.key_chain import KeyChain
from kvhybrid.replay.loop import ANY_TOKEN
from kvhybrid.scheduling.scheduler import Scheduler
from kvhybrid.specs import ChunkedLocalAttentionSpec, FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec
from runs.speed.catalogue import CatalogueSide
from runs.speed.side import ScheduledCache
from runs.speed.trace import Prompt, block_keys, own_copies
from runs.speed.works import BLOCK, MAX_MODEL_LEN, Group


class KeyedRequest(Request):
    """Has keys and a number of tokens, but no tokens."""

    num_tokens: int = 0

    def __init__(self, request_id: str, num_tokens: int, keys: Sequence[bytes]) -> None:
        super().__init__(request_id, (0,))
        self.token_ids.clear()
        self.num_prompt_tokens = self.num_tokens = num_tokens
        self.hash_unit = BLOCK
        self.block_hashes = KeyChain(own_copies(keys))


class GeneratingRequest(KeyedRequest):
    """Counts the tokens it generates and has the keys of the blocks that they fill."""

    def __init__(self, prompt: Prompt) -> None:
        super().__init__(prompt.request_id, prompt.num_tokens, prompt.keys)
        self.max_new_tokens = prompt.num_output_tokens
        self._output_keys = iter(block_keys(prompt.request_id, prompt.num_output_tokens // BLOCK + 1))
        self._next_key_at = (len(prompt.keys) + 1) * BLOCK

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    def append_output_token_ids(self, token_ids: Sequence[int]) -> None:
        self.num_tokens += len(token_ids)
        while self.num_tokens >= self._next_key_at:
            self.block_hashes.append(next(self._output_keys))
            self._next_key_at += BLOCK


class OurScheduler(ScheduledCache):
    """`kvhybrid.scheduling.scheduler.Scheduler`, stepped without a model."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._hits: dict[str, int] = {}

    def add(self, prompt: Prompt) -> None:
        self._scheduler.add_request(GeneratingRequest(prompt))

    def run(self) -> int:
        scheduler, hits, steps = self._scheduler, self._hits, 0
        while scheduler.has_unfinished:
            output = scheduler.schedule()
            for request, start, _, _ in reversed(output.scheduled):  # the admitted ones are the last
                if request.request_id in hits:
                    break
                hits[request.request_id] = start
            scheduler.update_from_output(output, ANY_TOKEN)
            steps += 1
        return steps

    def hits(self) -> dict[str, int]:
        found, self._hits = self._hits, {}
        return found


class Ours(CatalogueSide):
    """kvhybrid with its defaults: statistics per group are always on, miss causes and events are off."""

    name = "ours"
    running = RequestStatus.RUNNING
    watch = False

    def version(self) -> str:
        form = "compiled" if is_compiled else "not compiled"
        return f"kvhybrid {version('kvhybrid')} ({form}), numpy {version('numpy')}"

    def cache(self, groups: Sequence[Group], num_blocks: int, in_flight: int | None = None) -> KVCacheManager:
        return KVCacheManager(
            cache_config(groups, num_blocks),
            max_model_len=MAX_MODEL_LEN,
            max_in_flight_tokens=in_flight,
            track_misses=self.watch,
            record_events=self.watch,
        )

    def request(self, request_id: str, num_tokens: int, keys: Sequence[bytes]) -> Request:
        return KeyedRequest(request_id, num_tokens, keys)

    def token_request(self, request_id: str, tokens: list[int]) -> Request:
        request = Request(request_id, tokens)
        request.hash_unit = BLOCK
        return request

    def hasher(self) -> Callable[[Any], Any]:
        hasher = PrefixHasher(BLOCK)
        return lambda request: hasher.extend(request.block_hashes, request.token_ids, request.extra_keys)

    def after_request(self, cache: KVCacheManager) -> Callable[[], Any] | None:
        return cache.take_events if self.watch else None

    def look(self, cache: KVCacheManager) -> list[int]:
        return [group.evictions for group in cache.stats().groups]

    def scheduler(self, groups: Sequence[Group], num_blocks: int, budget: int, seqs: int) -> OurScheduler:
        cache = self.cache(groups, num_blocks, in_flight=budget)
        return OurScheduler(Scheduler(cache, max_batched_tokens=budget, max_num_seqs=seqs))


class OursWatching(Ours):
    """With miss causes and events, which are taken after every request."""

    name = "ours, all on"
    watch = True


def cache_config(groups: Sequence[Group], num_blocks: int) -> KVCacheConfig:
    named = tuple(KVCacheGroup(f"{group.kind}{i}", _spec(group)) for i, group in enumerate(groups))
    return KVCacheConfig(named, num_blocks)


def _spec(group: Group) -> KVCacheSpec:
    if group.kind == "window":
        return SlidingWindowSpec(block_size=BLOCK, window=group.reach)
    if group.kind == "chunk":
        return ChunkedLocalAttentionSpec(block_size=BLOCK, chunk=group.reach)
    return MambaSpec(block_size=BLOCK) if group.kind == "state" else FullAttentionSpec(block_size=BLOCK)
