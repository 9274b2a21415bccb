"""The cache manager: whether a request may have slots."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NoReturn

from mypy_extensions import mypyc_attr

from kvhybrid.cache.blocks import ComputedBlocks, KVCacheBlocks, PrefixHit
from kvhybrid.cache.config import CacheConfigError, KVCacheConfig
from kvhybrid.cache.coordinators import get_kv_cache_coordinator
from kvhybrid.cache.coordinators.allocation import NO_HEADROOM, Allocation, Headroom
from kvhybrid.cache.coordinators.request_tables import RequestTables
from kvhybrid.cache.counts import allocation_of, check_count
from kvhybrid.cache.events import CacheEvent
from kvhybrid.cache.hashing import PrefixHasher
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.cache.stats import CacheStats
from kvhybrid.cache.stats_collector import StatsCollector
from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.pool.block_pool import BlockPool
from kvhybrid.plugins import Choice

RUNNING: Final = RequestStatus.RUNNING
ADMISSIBLE: Final = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


@mypyc_attr(allow_interpreted_subclasses=True)
class KVCacheManager:
    """The interface that a scheduler calls. It decides about admission; the coordinator carries it out.

    An allocation is counted first and committed after. A refusal changes nothing, except that blocks which no
    later token reads may have been freed.
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
        retention: Choice = "interval",
        eviction: Choice = "lru",
        track_misses: bool = False,
        record_events: bool = False,
        residency_clock: Callable[[], float] | None = None,
    ) -> None:
        """
        Args:
            config: The groups and the number of blocks.
            max_model_len: Maximum tokens of a request, look-ahead included.
            max_in_flight_tokens: Maximum tokens of one request that are scheduled before its dead blocks are
                freed; ``max_model_len`` by default.
            watermark: Share of the pool that admissions leave free while other requests run, 0 to 1; at 1 requests
                are admitted one by one.
            retention_interval: Where window tails and states stay reusable. None: wherever a hit can end. 0: at
                the prompt's end and at junctions. N: additionally every N tokens.
            retention: The retention policy: a registered name, ``module:Class``, or a callable that makes it.
            eviction: The order of reuse, given in the same way.
            track_misses: Find the cause of every token that was not hit, for `stats`.
            record_events: Collect cache events for `take_events`.
            residency_clock: Measure how long blocks live, in the unit of this clock, for ``residency``.

        Raises:
            CacheConfigError: The configuration cannot work.
        """
        if not 0.0 <= watermark <= 1.0:
            raise CacheConfigError(f"watermark = {watermark} must lie in [0, 1]")
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
            retention=retention,
            eviction=eviction,
        )
        self._tables = self.coordinator.tables
        self.block_pool: BlockPool = self.coordinator.pool
        self.hash_unit = config.hash_unit
        self.hasher = PrefixHasher(self.hash_unit) if enable_caching else None
        self.no_hit, self.no_blocks = self.coordinator.no_hit, self.coordinator.no_blocks
        self._collector = StatsCollector(self.coordinator)
        misses, events = track_misses and enable_caching, record_events and enable_caching
        self.residency = self.coordinator.observe(misses, events, residency_clock)
        self.events = self.coordinator.events

    @property
    def usage(self) -> float:
        """Share of the usable blocks that requests hold, 0 to 1; with ``config.pools``, of the units of memory."""
        return self.coordinator.groups.usage

    @property
    def num_free_blocks(self) -> int:
        """Blocks of the shared pool, or units of memory, that no request holds, cached ones included."""
        return self.coordinator.groups.num_free

    # ---- what the scheduler calls

    def get_computed_blocks(self, request: Request) -> ComputedBlocks:
        """Find the longest cached prefix of ``request``, which has no computed tokens.

        The hit leaves at least the last token to compute, since the model must give its logits. No block is held.

        Returns:
            The hit, its number of tokens, and the junction: how far some group could have gone beyond the hit.

        Raises:
            ValueError: The request's keys are not of this cache's unit, or another request of its id holds blocks.
        """
        held, unit = self._tables.get(request.request_id), self.hash_unit
        if held is not None and held.owner is not request:
            self._refuse_owner(request)
        if self.enable_caching and request.hash_unit not in (None, unit):
            raise ValueError(
                f"request {request.request_id!r} has a key for every {request.hash_unit} tokens, this cache for "
                f"every {unit}; make it with hasher=manager.hasher"
            )
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return ComputedBlocks(self.no_hit, 0, 0)
        tokens = request.num_tokens
        hit = self.coordinator.find_longest_cache_hit(request, tokens - 1)
        hit.cache, hit.request, hit.tokens_asked = self, request, tokens
        if self.coordinator.ledger is not None:
            hit.causes = self.coordinator.miss_causes(request, hit)
        return ComputedBlocks(hit, hit.num_tokens, hit.junction)

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: PrefixHit | None = None,
        *,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
    ) -> KVCacheBlocks | None:
        """Allocate slots for the next step of ``request``, or return None if they do not fit now.

        The tokens of a call are in this order::

            | computed | adopted hit | from outside | new | look-ahead |

        Args:
            request: Running, or about to be admitted. Its ``num_computed_tokens`` are those before the step.
            num_new_tokens: Tokens that the step computes, with drafts. Negative only to give drafts up.
            num_new_computed_tokens: Tokens of the hit to adopt: all of ``new_computed_blocks``, or 0 to adopt
                nothing of it.
            new_computed_blocks: What the look-up of this request found, for an admission.
            num_lookahead_tokens: Slots for a draft model beyond the new tokens.
            num_external_computed_tokens: Tokens that are loaded from outside. A loader must fill whole blocks,
                since a block's key covers all its tokens.
            delay_cache_blocks: Give no keys yet, because the load has not finished; `cache_blocks` gives them.
            num_encoder_tokens: Encoder tokens of an admission.
            full_sequence_must_fit: Also refuse if the whole request does not fit.
            reserved_blocks: Blocks of the shared pool to leave free for others.
            has_scheduled_reqs: Whether other requests run, so that an admission respects the watermark.

        Returns:
            Per group, the entries that this call appended for new and look-ahead tokens, null entries included.

        Raises:
            ValueError: There is nothing to allocate and nothing to adopt, a token count is out of
                range, the hit is not this request's, or another request of this id holds blocks. Also if
                ``num_computed_tokens`` was lowered to where the request no longer holds what the step needs.
            StaleHitError: A block of the hit was reused since the look-up.
            ManagerError: A plug-in raised; the call was rolled back.
        """
        held = self._tables.get(request.request_id)
        start = request.num_computed_tokens
        end = start + num_new_tokens
        # Most decode steps end here: no block is needed, dead or to be keyed before ``no_work_until``.
        if (
            held is not None
            and held.owner is request
            and start == held.step_end
            and end + num_lookahead_tokens <= held.no_work_until
            and request.status is RUNNING
            and num_new_tokens > 0
            and num_lookahead_tokens >= 0
            and not num_external_computed_tokens
            and not num_new_computed_tokens
        ):
            held.step_end = end
            return self.no_blocks
        if held is not None and held.owner is not request:
            self._refuse_owner(request)
        if not (num_new_tokens or num_new_computed_tokens or num_external_computed_tokens):
            raise ValueError(f"request {request.request_id!r}: no tokens to allocate and none to adopt")
        allocation = allocation_of(
            request,
            held,
            self.max_model_len,
            num_new_tokens,
            num_new_computed_tokens,
            num_external_computed_tokens,
            num_lookahead_tokens,
            num_encoder_tokens,
            delay_cache_blocks,
            reserved_blocks,
        )
        hit: PrefixHit | None = None
        if held is None:
            hit = self._hit_of(request, new_computed_blocks, num_new_computed_tokens)
        elif start < held.step_end:
            self.coordinator.check_going_back(held, allocation)
        headroom = NO_HEADROOM
        watermark = self.watermark_blocks if has_scheduled_reqs and request.status in ADMISSIBLE else 0
        if watermark or reserved_blocks or full_sequence_must_fit:
            full = min(request.num_tokens, self.max_model_len) if full_sequence_must_fit else 0
            headroom = Headroom(watermark, reserved_blocks, full)
        answer = self.coordinator.allocate(request, held, hit, allocation, headroom)
        if not isinstance(answer, KVCacheBlocks):
            self._collector.refused(answer)
            return None
        if held is None:
            self._collector.admitted(request, num_new_computed_tokens, new_computed_blocks)
        return answer

    def _held_by(self, request: Request) -> RequestTables | None:
        """What ``request`` holds; ValueError if it is another request of its id that holds blocks."""
        held = self._tables.get(request.request_id)
        if held is not None and held.owner is not request:
            self._refuse_owner(request)
        return held

    def _refuse_owner(self, request: Request) -> NoReturn:
        raise ValueError(f"request {request.request_id!r}: another request of this id holds blocks; free it first")

    def _hit_of(self, request: Request, found: PrefixHit | None, num_tokens: int) -> PrefixHit | None:
        """The hit to adopt, of ``num_tokens``: ``found`` or nothing. ValueError if it is another look-up's."""
        if (
            found is not None
            and found is not self.no_hit
            and (found.request is not request or found.cache is not self)
        ):
            other = "cache" if found.cache is not self else "request"
            raise ValueError(f"request {request.request_id!r}: new_computed_blocks is a hit of another {other}")
        if not num_tokens:
            return None
        if found is None or found.num_tokens != num_tokens:
            raise ValueError(
                f"request {request.request_id!r}: num_new_computed_tokens = {num_tokens}, "
                f"new_computed_blocks is a hit of {found.num_tokens if found is not None else 0} tokens"
            )
        return found

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Key the blocks that are full at ``num_computed_tokens``, when a load with delayed keys has finished.

        Raises:
            ValueError: The count is negative or more than the request has entries for, or another request of its
                id holds blocks.
        """
        held = self._held_by(request)
        most = held.step_end if held is not None else self.max_model_len
        check_count(f"request {request.request_id!r}: num_computed_tokens", num_computed_tokens, most)
        self.coordinator.cache_blocks(request, num_computed_tokens)

    def free(self, request: Request) -> None:
        """Free the blocks of ``request``, each group's tail first. They keep their keys until they are reused.

        Raises:
            ValueError: Another request of its id holds blocks.
        """
        self._held_by(request)
        self.coordinator.free(request)

    def pop_blocks_for_free(self, request: Request) -> RequestTables | None:
        """End ``request`` but keep its blocks held until `free_blocks`, for a transfer that still reads them.

        Raises:
            ValueError: Another request of its id holds blocks.
        """
        self._held_by(request)
        return self.coordinator.defer_free(request)

    def free_blocks(self, held: RequestTables) -> None:
        """Free what `pop_blocks_for_free` kept.

        Raises:
            ValueError: It was freed before, or never kept.
        """
        self.coordinator.free_deferred(held)

    def new_step_starts(self) -> None:
        """Begin a scheduling step: states that the last one has keyed can be hit now."""
        self.coordinator.groups.new_step_starts()

    def discard_step(self) -> None:
        """Drop the keys that this step has given: its forward pass did not run, or failed.

        Blocks get their keys when they are allocated, so without it later requests would hit what was not written.
        Call it before the requests of the step are freed.
        """
        for pool in self.coordinator.pools:
            pool.keys.drop(pool.keys.keyed_in_step())

    def take_copies(self) -> list[tuple[int, int]]:
        """The page copies (source, target) to run before the step's forward pass, group by group.

        Both blocks of each stay held until `release_copies`.
        """
        return self.coordinator.groups.pending_copies()

    def release_copies(self) -> None:
        """The copies that `take_copies` returned have run."""
        self.coordinator.groups.release_copies()

    def take_events(self) -> list[CacheEvent]:
        """The cache events since the last call; empty unless ``record_events`` is on."""
        return self.events.take() if self.events is not None else []

    def evict_blocks(self, block_ids: Iterable[int], group: int | None = None) -> None:
        """Drop the keys of these blocks of the first pool, or of the pool of ``group``. Held blocks stay held.

        Raises:
            BlockPoolError: One is outside of the pool.
            ValueError: There is no such group.
        """
        if group is not None:
            check_count("group", group, len(self.config.groups) - 1)
        pool = self.block_pool if group is None else self.coordinator.groups.pool_of_group(group)
        pool.evict(block_ids)

    def forget(self, request: Request) -> None:
        """Drop the keys of all prefixes of ``request``, whichever request computed their blocks.

        For a request whose results cannot be trusted. Its blocks stay held until it is freed. Raises ValueError if
        another request of its id holds blocks.
        """
        self._held_by(request)
        self.coordinator.forget(request)

    def reset_prefix_cache(self) -> bool:
        """Drop every key, if no request holds a block; otherwise do nothing and return False."""
        return self.coordinator.groups.reset_keys()

    # ---- reading

    def get_block_ids(self, request_id: str) -> tuple[IntArray, ...]:
        """The request's block table now, one row of block ids per group; empty rows if it holds nothing."""
        held = self._tables.get(request_id)
        if held is None:
            return self.no_hit.ids
        return tuple(held.tables[c].row(i).copy() for c, i in self.coordinator.place)

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        """As `get_block_ids`, in the form that `allocate_slots` returns."""
        return KVCacheBlocks(self.get_block_ids(request_id))

    def blocks_to_finish(self, request: Request, num_new_tokens: int) -> list[int]:
        """Per pool, the shared one first, the blocks that ``request`` takes until all its tokens are computed.

        It starts with a step of ``num_new_tokens`` and without a hit, as if it were not admitted yet.

        Raises:
            ValueError: ``num_new_tokens`` is out of range, or another request of its id holds blocks.
        """
        self._held_by(request)
        check_count(f"request {request.request_id!r}: num_new_tokens", num_new_tokens, self.max_model_len)
        allocation = Allocation(0, num_new_tokens, num_new_tokens, 0, 0, False, request.num_encoder_tokens)
        return self.coordinator.blocks_to_finish(request, allocation, min(request.num_tokens, self.max_model_len))

    def stats(self) -> CacheStats:
        """The current stats, per group and for the shared pool."""
        return self._collector.stats()
