"""The cache manager: whether a request may have slots, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kvhybrid.blocks import ComputedBlocks, KVCacheBlocks
from kvhybrid.cache_config import KVCacheConfig
from kvhybrid.coordinator import CacheConfigError, RequestTables, Step, get_kv_cache_coordinator
from kvhybrid.hashing import PrefixHasher
from kvhybrid.managers.arrays import EMPTY, IntArray
from kvhybrid.managers.block_pool import BlockPool
from kvhybrid.managers.prefix_index import PrefixPath
from kvhybrid.managers.table import BlockTable
from kvhybrid.request import Request, RequestStatus
from kvhybrid.stats import CacheStats, GroupStats


class KVCacheManager:
    """The interface that a scheduler calls.

    Every allocation counts first and commits after: a refusal changes nothing, except that blocks which nobody
    reads any more may have gone back to the pool.
    """

    def __init__(
        self,
        config: KVCacheConfig,
        *,
        max_model_len: int,
        max_in_flight_tokens: int | None = None,
        enable_caching: bool = True,
        watermark: float = 0.0,
        retention_interval: int | None = None,
        eviction: str = "lru",
    ) -> None:
        """
        Args:
            config: The groups and the number of blocks.
            max_model_len: Slots are never reserved beyond this many tokens.
            max_in_flight_tokens: Most tokens of one request between two frees; ``max_model_len`` where not given.
            watermark: Share of the pool that admissions leave free while other requests run, 0 to 1.
            retention_interval: None keeps every reusable window tail and state, 0 those of the latest position,
                N those of every N tokens as well.
            eviction: Name of the order of reuse.
        """
        if not 0.0 <= watermark < 1.0:
            raise CacheConfigError(f"watermark = {watermark} must lie in [0, 1)")
        if max_model_len < 1:
            raise CacheConfigError(f"max_model_len = {max_model_len} must be at least 1")
        self.config = config
        self.max_model_len = max_model_len
        self.enable_caching = enable_caching
        self.watermark_blocks = int(watermark * config.num_blocks)
        self.coordinator = get_kv_cache_coordinator(
            config,
            enable_caching=enable_caching,
            max_model_len=max_model_len,
            max_in_flight_tokens=max_in_flight_tokens or max_model_len,
            retention_interval=retention_interval,
            eviction=eviction,
        )
        self.block_pool: BlockPool = self.coordinator.pool
        self.hasher = PrefixHasher(config.hash_unit) if enable_caching else None
        self.empty_hit = self.coordinator.no_hit()
        self.empty_blocks = KVCacheBlocks((EMPTY,) * len(config.groups))
        self._refusals = 0

    @property
    def usage(self) -> float:
        """Share of the usable blocks that requests hold, 0 to 1."""
        return self.block_pool.usage

    @property
    def num_free_blocks(self) -> int:
        return self.block_pool.num_free

    # ---- what the scheduler calls

    def get_computed_blocks(self, request: Request) -> ComputedBlocks:
        """The longest reusable prefix: at most all tokens but the last, whose logits are wanted.

        Nothing is held and nothing changes. Only for a request without computed tokens.
        """
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return ComputedBlocks(self.empty_hit, 0, 0)
        hit = self.coordinator.find_longest_cache_hit(request, request.num_tokens - 1)
        return ComputedBlocks(hit, hit.num_tokens, hit.junction)

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        *,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
    ) -> KVCacheBlocks | None:
        """Slots for the next step of ``request``, or None when they do not fit now.

        The tokens of a call lie in this order::

            | computed | adopted hit | from outside | new | look-ahead |

        Args:
            num_new_tokens: Tokens that the step computes, drafts included.
            num_new_computed_tokens: Tokens of the hit ``new_computed_blocks``.
            num_lookahead_tokens: Slots for a draft model beyond the new tokens.
            num_external_computed_tokens: Tokens whose entries are loaded from outside.
            delay_cache_blocks: The load is still running: give no keys yet.
            num_encoder_tokens: Encoder tokens of an admission.
            full_sequence_must_fit: Refuse as well if the whole request could not fit.
            reserved_blocks: Free blocks to leave for others.
            has_scheduled_reqs: Other requests run, so that an admission respects the watermark.

        Returns:
            The entries that this call appended for new and look-ahead tokens, null entries included.

        Raises:
            ValueError: There is nothing to allocate and nothing to adopt.
        """
        if not (num_new_tokens or num_new_computed_tokens or num_external_computed_tokens):
            raise ValueError(f"request {request.request_id!r}: no tokens to allocate and none to adopt")
        coordinator = self.coordinator
        held = coordinator.tables.get(request.request_id)
        step = self._step(
            request,
            num_new_tokens,
            num_new_computed_tokens,
            num_external_computed_tokens,
            num_lookahead_tokens,
            num_encoder_tokens,
        )
        tables = held.tables if held else [BlockTable(len(m.groups)) for m in coordinator.managers]
        if held:
            coordinator.free_dead(held, max(0, step.total - request.num_in_flight_tokens))
            step = step._replace(loads=False)
        hits = None
        if not held and num_new_computed_tokens and new_computed_blocks is not None:
            hits = coordinator.live_hits(new_computed_blocks, step)
            if any(m.was_keyed_this_step(hit) for m, hit in zip(coordinator.managers, hits, strict=True)):
                return self._refused()

        growths = coordinator.growths(tables, hits, step)
        to_hold = coordinator.blocks_to_hold(hits) if hits else 0
        waiting = request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        watermark = self.watermark_blocks if has_scheduled_reqs and waiting else 0
        need = coordinator.blocks_needed(growths) + to_hold + watermark
        if need > self.num_free_blocks - reserved_blocks:
            return self._refused()
        if full_sequence_must_fit:
            full = min(request.num_tokens, self.max_model_len)
            most = coordinator.most_blocks(tables, hits, step, full)
            if most + to_hold + watermark > self.num_free_blocks:
                return self._refused()

        if held is None:
            held = self._admit(request, tables, new_computed_blocks, num_new_computed_tokens)
        added = coordinator.commit(held, hits, growths, step)
        if self.enable_caching and not delay_cache_blocks:
            coordinator.cache_blocks(held, request, min(step.main, request.num_tokens))
        return added

    def _step(self, request: Request, new: int, adopted: int, external: int, lookahead: int, encoder: int) -> Step:
        local = request.num_computed_tokens + adopted
        total = min(local + external, self.max_model_len)
        main = total + new
        return Step(
            total=total,
            main=main,
            slots=min(main + lookahead, self.max_model_len),
            hit_tokens=adopted,
            loads=external > 0,
            encoder=encoder,
        )

    def _refused(self) -> KVCacheBlocks | None:
        self._refusals += 1
        return None

    def _admit(
        self, request: Request, tables: list[BlockTable], hit: KVCacheBlocks | None, hit_tokens: int
    ) -> RequestTables:
        held = RequestTables(tables, request.path or PrefixPath())
        request.path = held.path
        self.coordinator.tables[request.request_id] = held
        counters = self.coordinator.counters
        counters.asked += request.num_tokens
        counters.hit += hit_tokens
        counters.own += np.array(getattr(hit, "own_tokens", (hit_tokens,) * len(self.config.groups)))
        return held

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Key what is full at ``num_computed_tokens``: the end of a load whose keys were delayed."""
        held = self.coordinator.tables.get(request.request_id)
        if held is not None and self.enable_caching:
            self.coordinator.cache_blocks(held, request, num_computed_tokens)

    def free(self, request: Request) -> None:
        """Give back the blocks of ``request``, each group's tail first. Their keys stay until reuse."""
        self.coordinator.free(request.request_id)

    def new_step_starts(self) -> None:
        """A new scheduling step: states keyed in the last one are readable now."""
        self.coordinator.new_step_starts()

    def take_copies(self) -> list[tuple[int, int]]:
        """The page copies (source, target) to run before the step's forward pass, group by group.

        Both ends stay held until `release_copies`.
        """
        return self.coordinator.pending_copies()

    def release_copies(self) -> None:
        """The copies that `take_copies` gave have run."""
        copies = self.coordinator.pending_copies()
        self.coordinator.clear_copies()
        self.coordinator.release_copies(copies)

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Drop the keys of these blocks; nothing else changes."""
        self.block_pool.evict(block_ids)

    def reset_prefix_cache(self) -> bool:
        """Drop every key, if no request holds a block; otherwise do nothing and return False."""
        return self.block_pool.reset()

    # ---- looking

    def get_block_ids(self, request_id: str) -> tuple[IntArray, ...]:
        """The request's block table, one row per group; empty rows where it holds nothing."""
        held = self.coordinator.tables.get(request_id)
        if held is None:
            return self.empty_blocks.ids
        return tuple(held.tables[c].row(i) for c, i in self.coordinator.place)

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        return KVCacheBlocks(self.get_block_ids(request_id))

    def stats(self) -> CacheStats:
        """The figures of now, per group and for the pool."""
        pool, counters = self.block_pool, self.coordinator.counters
        cached, reusable = pool.count_by_group(len(self.config.groups))
        live = self._live_blocks()
        groups = tuple(
            GroupStats(
                name=group.name,
                tokens_asked=counters.asked,
                tokens_hit=counters.hit,
                tokens_own_hit=int(counters.own[g]),
                blocks_live=live[g],
                blocks_cached=int(cached[g]),
                blocks_reusable=int(reusable[g]),
                evictions=int(pool.evictions[g]),
            )
            for g, group in enumerate(self.config.groups)
        )
        return CacheStats(groups, pool.num_blocks - 1, pool.num_free, pool.usage, self._refusals)

    def _live_blocks(self) -> list[int]:
        """Per group, the distinct blocks that requests hold."""
        held = self.coordinator.tables.values()
        live: list[int] = []
        for c, i in self.coordinator.place:
            rows = [tables.tables[c].row(i) for tables in held]
            blocks = np.unique(np.concatenate(rows)) if rows else EMPTY
            live.append(int((blocks > 0).sum()))
        return live
