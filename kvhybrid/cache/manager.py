"""The cache manager: whether a request may have slots, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from mypy_extensions import mypyc_attr

from kvhybrid.cache.blocks import ComputedBlocks, KVCacheBlocks, PrefixHit, check_adopted
from kvhybrid.cache.calls import CacheCalls
from kvhybrid.cache.config import CacheConfigError, KVCacheConfig
from kvhybrid.cache.coordinators import get_kv_cache_coordinator
from kvhybrid.cache.coordinators.roll_back import mark_step, recount, undo_step
from kvhybrid.cache.coordinators.step import Headroom, RequestTables, Step
from kvhybrid.cache.counters import CacheCounters
from kvhybrid.cache.errors import StaleHitError, manager_error
from kvhybrid.cache.events import CacheEvent
from kvhybrid.cache.figures import take_stats
from kvhybrid.cache.hashing import PrefixHasher
from kvhybrid.cache.observers import observe
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.cache.stats import CacheStats
from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.pool.block_pool import BlockPool

NO_HEADROOM: Final = Headroom(0, 0, 0)
RUNNING: Final = RequestStatus.RUNNING
ADMISSIBLE: Final = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


@mypyc_attr(allow_interpreted_subclasses=True)
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
        track_misses: bool = False,
        record_events: bool = False,
        residency_clock: Callable[[], float] | None = None,
    ) -> None:
        """
        Args:
            config: The groups and the number of blocks.
            max_model_len: Most tokens of a request; look-ahead slots stop there too.
            max_in_flight_tokens: Most tokens of one request between two frees; ``max_model_len`` where not given.
            watermark: Share of the pool that admissions leave free while other requests run, 0 to 1.
            retention_interval: How densely window tails and states stay reusable. None: wherever a hit can end.
                0: at the prompt's end and at junctions. A number: besides those, once in so many tokens.
            eviction: Name of the order of reuse.
            track_misses: Name the cause of every token that was not hit.
            record_events: Collect cache events for `take_events`.
            residency_clock: Measure how long blocks live, with this clock.

        Raises:
            CacheConfigError: The configuration cannot work.
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
        self.hash_unit = config.hash_unit
        self.hasher = PrefixHasher(self.hash_unit) if enable_caching else None
        self.empty_hit = self.coordinator.nothing
        self.no_blocks = KVCacheBlocks(self.empty_hit.ids)
        self.counters = CacheCounters(len(config.groups))
        self.recorder: CacheCalls | None = None
        """Gets all of its calls instead, while there is one, and passes them on."""
        misses, events = track_misses and enable_caching, record_events and enable_caching
        self.events, self.residency = observe(self.coordinator, misses, events, residency_clock)

    @property
    def usage(self) -> float:
        """Share of the usable blocks that requests hold, 0 to 1."""
        return self.block_pool.usage

    @property
    def num_free_blocks(self) -> int:
        """Blocks of the shared pool that nobody holds, cached ones included."""
        return self.block_pool.num_free

    # ---- what the scheduler calls

    def get_computed_blocks(self, request: Request) -> ComputedBlocks:
        """How much of ``request`` is cached. Its last token is left to compute, for the sake of its logits.

        Nothing is held and nothing changes. Only for a request without computed tokens.
        """
        if self.recorder is not None:
            return self.recorder.get_computed_blocks(request)
        unit = self.hash_unit
        if self.enable_caching and request.hash_unit not in (None, unit):
            raise ValueError(
                f"request {request.request_id!r} has a key for every {request.hash_unit} tokens, this cache for "
                f"every {unit}; make it with hasher=manager.hasher"
            )
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return ComputedBlocks(self.empty_hit, 0, 0)
        hit = self.coordinator.find_longest_cache_hit(request, request.num_tokens - 1)
        if self.coordinator.ledger is not None:
            hit.causes = self.coordinator.miss_causes(request, hit)
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
            num_external_computed_tokens: Tokens whose entries are loaded from outside. A loader fills whole
                blocks, since later keys promise all their tokens.
            delay_cache_blocks: The load is still running: give no keys yet.
            num_encoder_tokens: Encoder tokens of an admission.
            full_sequence_must_fit: Refuse as well if the whole request could not fit.
            reserved_blocks: Free blocks to leave for others.
            has_scheduled_reqs: Other requests run, so that an admission respects the watermark.

        Returns:
            The entries that this call appended for new and look-ahead tokens, null entries included.

        Raises:
            ValueError: There is nothing to allocate and nothing to adopt.
            ManagerError: A single-type manager raised; everything is as it was before the call.
        """
        if self.recorder is not None:
            return self.recorder.allocate_slots(
                request,
                num_new_tokens,
                num_new_computed_tokens,
                new_computed_blocks,
                num_lookahead_tokens=num_lookahead_tokens,
                num_external_computed_tokens=num_external_computed_tokens,
                delay_cache_blocks=delay_cache_blocks,
                num_encoder_tokens=num_encoder_tokens,
                full_sequence_must_fit=full_sequence_must_fit,
                reserved_blocks=reserved_blocks,
                has_scheduled_reqs=has_scheduled_reqs,
            )
        held = self.coordinator.tables.get(request.request_id)
        # A running request that stays within what its last step found out: no block, no key, nothing dead.
        if (
            held is not None
            and held.owner is request
            and request.num_computed_tokens + num_new_tokens + num_lookahead_tokens <= held.quiet_until
            and request.status is RUNNING
            and num_new_tokens > 0
            and not num_external_computed_tokens
        ):
            return self.no_blocks
        if held is None and num_new_computed_tokens:
            managers = len(self.coordinator.managers)
            check_adopted(request.request_id, num_new_computed_tokens, new_computed_blocks, managers)
        elif held is not None and held.owner is not request:
            raise ValueError(
                f"request {request.request_id!r}: another request of this id holds blocks; free it first"
            )
        if not (num_new_tokens or num_new_computed_tokens or num_external_computed_tokens):
            raise ValueError(f"request {request.request_id!r}: no tokens to allocate and none to adopt")
        adopted, longest = 0 if held else num_new_computed_tokens, self.max_model_len
        total = min(request.num_computed_tokens + adopted + num_external_computed_tokens, longest)
        main = total + num_new_tokens
        slots = min(main + num_lookahead_tokens, longest)
        loads = held is None and num_external_computed_tokens > 0
        step = Step(total, main, slots, adopted, loads, num_encoder_tokens)
        headroom = NO_HEADROOM
        watermark = self.watermark_blocks if has_scheduled_reqs and request.status in ADMISSIBLE else 0
        if watermark or reserved_blocks or full_sequence_must_fit:
            full = min(request.num_tokens, self.max_model_len) if full_sequence_must_fit else 0
            headroom = Headroom(watermark, reserved_blocks, full)
        mark_step(self.coordinator, held)
        try:
            return self._allocate(request, held, new_computed_blocks, step, headroom, delay_cache_blocks)
        except StaleHitError:
            raise
        except Exception as error:
            undo_step(self.coordinator, request.request_id, held)
            raise manager_error(self.coordinator, error, f"request {request.request_id!r}, {step}") from error

    def _allocate(
        self,
        request: Request,
        held: RequestTables | None,
        hit: KVCacheBlocks | None,
        step: Step,
        headroom: Headroom,
        delay_cache_blocks: bool,
    ) -> KVCacheBlocks | None:
        """Free what is dead, count, refuse or commit, key."""
        coordinator = self.coordinator
        admitted = held is None
        if held is None:
            held = coordinator.new_tables(request)
        else:
            settled = max(0, step.total - request.num_in_flight_tokens)
            if settled > held.quiet_until:
                coordinator.free_dead(held, settled)
        hits: Sequence[IntArray] | None = None
        if step.hit_tokens and hit is not None:
            assert isinstance(hit, PrefixHit)
            hits = hit.by_manager
            if coordinator.are_stale(hits, request):
                raise StaleHitError(f"request {request.request_id!r}: the hit is out of date; look it up again")
            if coordinator.are_too_fresh(hits, step.hit_tokens):
                return self._refused("not_written_yet")
            if step.loads:
                hits = coordinator.live_parts(hits, step.total)

        if not admitted and headroom is NO_HEADROOM and coordinator.has_room(held, step.slots):
            coordinator.settle(held, step)
            self._key_step(held, request, step, delay_cache_blocks)
            return self.no_blocks
        growths = coordinator.growths(held.tables, hits, step)
        if not coordinator.fits(coordinator.demand(growths, hits), headroom.watermark + headroom.reserved):
            return self._refused("no_blocks")
        if headroom.full_tokens:
            need = coordinator.demand_to_the_end(held.tables, hits, step, headroom.full_tokens)
            if not coordinator.fits(need, headroom.watermark):
                return self._refused("whole_request")

        if admitted:
            coordinator.tables[request.request_id] = held
        added = coordinator.commit(held, hits, growths, step)
        self._key_step(held, request, step, delay_cache_blocks)
        if admitted:
            causes = coordinator.ledger is not None
            self.counters.admitted(request.num_tokens, step.hit_tokens, hit, causes)
        return added

    def _key_step(self, held: RequestTables, request: Request, step: Step, delay: bool) -> None:
        """Key what ``step`` has filled, and find out how long nothing will happen after it."""
        keyed = 0 if delay else min(step.main, request.num_tokens)
        held.quiet_until = -1
        if keyed:
            if keyed >= held.keys_from:
                self._key(held, request, keyed)
                held.keys_from = keyed - keyed % self.hash_unit + self.hash_unit
            if step.main >= request.num_prompt_tokens:
                held.quiet_until = self.coordinator.quiet_until(held, keyed, step.main)

    def _refused(self, reason: str) -> KVCacheBlocks | None:
        self.counters.refusals[reason] += 1
        return None

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Key what is full at ``num_computed_tokens``: the end of a load whose keys were delayed."""
        if self.recorder is not None:
            self.recorder.cache_blocks(request, num_computed_tokens)
        elif held := self.coordinator.tables.get(request.request_id):
            mark_step(self.coordinator, held)
            try:
                self._key(held, request, num_computed_tokens)
            except Exception as error:
                undo_step(self.coordinator, request.request_id, held)
                raise manager_error(self.coordinator, error, f"request {request.request_id!r}") from error

    def _key(self, held: RequestTables, request: Request, num_tokens: int) -> None:
        if self.enable_caching:
            if self.events is not None:
                self.events.request = request
            self.coordinator.cache_blocks(held, request, num_tokens)

    def free(self, request: Request) -> None:
        """Give back the blocks of ``request``, each group's tail first. Their keys stay until reuse."""
        if self.recorder is not None:
            self.recorder.free(request)
        elif held := self.coordinator.tables.pop(request.request_id, None):
            self._release(held)

    def pop_blocks_for_free(self, request: Request) -> RequestTables | None:
        """End ``request`` but keep its blocks held, for a transfer that still reads them, until `free_blocks`."""
        held = self.coordinator.tables.pop(request.request_id, None)
        if held is not None:
            self.coordinator.deferred.append(held)
        return held

    def free_blocks(self, held: RequestTables) -> None:
        """Give back what `pop_blocks_for_free` kept, each group's blocks to the pool that they came from.

        Raises:
            ValueError: They were given back already, or never kept.
        """
        for i, kept in enumerate(self.coordinator.deferred):
            if kept is held:
                del self.coordinator.deferred[i]
                self._release(held)
                return
        raise ValueError(f"the blocks of request {held.owner.request_id!r} are not waiting to be freed")

    def _release(self, held: RequestTables) -> None:
        try:
            self.coordinator.release(held)
        except Exception as error:
            recount(self.coordinator)
            where = f"free of request {held.owner.request_id!r}"
            raise manager_error(self.coordinator, error, where) from error

    def new_step_starts(self) -> None:
        """A new scheduling step: states keyed in the last one are readable now."""
        if self.recorder is not None:
            self.recorder.new_step_starts()
        else:
            self.coordinator.new_step_starts()

    def take_copies(self) -> list[tuple[int, int]]:
        """The page copies (source, target) to run before the step's forward pass, group by group.

        Both ends stay held until `release_copies`.
        """
        return self.coordinator.pending_copies()

    def release_copies(self) -> None:
        """The copies that `take_copies` gave have run."""
        if self.recorder is not None:
            self.recorder.release_copies()
        else:
            self.coordinator.release_copies()

    def take_events(self) -> list[CacheEvent]:
        """The cache events since the last call; empty unless they are recorded."""
        return self.events.take() if self.events is not None else []

    def evict_blocks(self, block_ids: Iterable[int], group: int | None = None) -> None:
        """Drop the keys of these blocks of the shared pool, or of the pool of ``group``; nothing else changes."""
        if self.recorder is not None:
            self.recorder.evict_blocks(block_ids, group)
        else:
            pool = self.block_pool if group is None else self.coordinator.pool_of_group(group)
            pool.evict(block_ids)

    def reset_prefix_cache(self) -> bool:
        """Drop every key, if no request holds a block; otherwise do nothing and return False."""
        if self.recorder is not None:
            return self.recorder.reset_prefix_cache()
        pools = self.coordinator.pools
        if any(pool.num_free != pool.num_blocks - 1 for pool in pools):
            return False
        return all(pool.reset() for pool in pools)

    # ---- looking

    def get_block_ids(self, request_id: str) -> tuple[IntArray, ...]:
        """The request's block table, one row per group; empty rows where it holds nothing."""
        held = self.coordinator.tables.get(request_id)
        if held is None:
            return self.empty_hit.ids
        return tuple(held.tables[c].row(i) for c, i in self.coordinator.place)

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        """As `get_block_ids`, in the form that `allocate_slots` returns."""
        return KVCacheBlocks(self.get_block_ids(request_id))

    def stats(self) -> CacheStats:
        """The figures of now, per group and for the pool."""
        return take_stats(self.coordinator, self.counters)
