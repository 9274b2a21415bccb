"""The contract of this folder: look-ups, allocations and frees over all groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from mypy_extensions import mypyc_attr

from kvhybrid.cache.blocks import KVCacheBlocks, PrefixHit
from kvhybrid.cache.config import KVCacheConfig
from kvhybrid.cache.coordinators.allocation import NO_HEADROOM, Allocation, Headroom, Refusal
from kvhybrid.cache.coordinators.groups import Groups
from kvhybrid.cache.coordinators.pooled_groups import PooledGroups
from kvhybrid.cache.coordinators.request_tables import RequestTables
from kvhybrid.cache.coordinators.roll_back import go_back, mark, recount
from kvhybrid.cache.coordinators.whole_request import WholeRequest
from kvhybrid.cache.errors import ManagerError, StaleHitError
from kvhybrid.cache.event_log import EventLog
from kvhybrid.cache.misses import MissLedger
from kvhybrid.cache.request import Request
from kvhybrid.cache.residency_meter import GroupResidency, ResidencyMeter
from kvhybrid.cache.stats import MissCauses
from kvhybrid.managers.arrays import EMPTY, IntArray
from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.managers.eviction import orders
from kvhybrid.managers.eviction.base import ReuseOrderError
from kvhybrid.managers.pool.observer import PoolObserver
from kvhybrid.managers.prefix.index import PrefixIndex, PrefixPath
from kvhybrid.managers.retention import retention_policies
from kvhybrid.managers.retention.base import Retention
from kvhybrid.plugins import Choice


@mypyc_attr(allow_interpreted_subclasses=True)
class KVCacheCoordinator:
    """Finds hits and carries out allocations over all groups, and keeps what every request holds.

    It decides nothing: which hits may be used and which blocks stay free is up to the cache manager.
    """

    def __init__(
        self,
        config: KVCacheConfig,
        *,
        max_model_len: int,
        max_in_flight_tokens: int,
        retention_interval: int | None,
        retention: Choice,
        eviction: Choice,
    ) -> None:
        self.config = config
        self.retention: Retention = retention_policies.maker(retention)(
            retention_interval, config.scheduler_block_size, any(group.draft for group in config.groups)
        )
        self.hash_unit = config.hash_unit
        self.sub_block_hits = self._sub_block_hits()
        self.alignment = self.hash_unit if self.sub_block_hits else config.scheduler_block_size
        groups: type[Groups] = Groups if config.pools is None else PooledGroups
        self.groups = groups(
            config,
            orders.maker(eviction),
            self.retention,
            self.alignment,
            self.sub_block_hits,
            max_model_len,
            max_in_flight_tokens,
        )
        self.whole_request = WholeRequest(self.groups)
        self.managers, self.pools, self.place = self.groups.managers, self.groups.pools, self.groups.place
        self.pool = self.pools[0]
        self.index = PrefixIndex(room=max(1 << 16, 4 * max([pool.num_blocks for pool in self.pools])))
        for pool in self.pools:
            pool.info.index, pool.info.unit = self.index, self.hash_unit
            pool.info.specs = tuple(group.spec for group in config.groups)
            pool.info.block_units = tuple(size // self.hash_unit for size in config.block_sizes)
        self.tables: dict[str, RequestTables] = {}
        """By request id, what every request holds."""
        self.deferred: list[RequestTables] = []
        """What finished requests still hold, for transfers that read it."""
        self.ledger: MissLedger | None = None
        self.events: EventLog | None = None
        cacheable = [c for c, manager in enumerate(self.managers) if manager.spec.cacheable]
        self.search_order = sorted(cacheable, key=lambda c: not self.managers[c].spec.prefix)
        """The managers that can have hits, first those for which a missing block rules out every longer hit."""
        self.no_hit = self._no_hit()
        self.no_blocks = KVCacheBlocks(self.no_hit.ids)
        """The answer to an allocation that appends no entry."""

    def _sub_block_hits(self) -> bool:
        return False

    def _no_hit(self) -> PrefixHit:
        groups = len(self.config.groups)
        nothing = tuple(np.zeros((len(m.groups), 0), np.int32) for m in self.managers)
        return PrefixHit((EMPTY,) * groups, 0, 0, (0,) * groups, None, nothing)

    def observe(
        self, misses: bool, events: bool, clock: Callable[[], float] | None
    ) -> list[GroupResidency] | None:
        """Attach observers to the pools: a ledger of misses, a log of events, meters of residency by ``clock``.

        Returns:
            Per group, what the meters measure; None without a clock.
        """
        observers: list[PoolObserver] = []
        if misses:
            self.ledger = MissLedger(len(self.config.groups))
            observers.append(self.ledger)
        if events:
            self.events = EventLog(self.config, self.index)
            observers.append(self.events)
        residency = [GroupResidency() for _ in self.config.groups] if clock else None
        for pool in self.pools:
            meter = (ResidencyMeter(pool, residency, clock),) if clock and residency is not None else ()
            pool.observers = (*observers, *meter)
        return residency

    # ---- look-up

    def find_longest_cache_hit(self, request: Request, limit: int) -> PrefixHit:
        """The longest prefix of at most ``limit`` tokens from which every cacheable group can resume."""
        raise NotImplementedError

    def miss_causes(self, request: Request, hit: PrefixHit) -> tuple[MissCauses, ...] | None:
        """Per group, why the tokens that ``hit``, just found, lacks were not hit; None without a ledger."""
        ledger = self.ledger
        if ledger is None:
            return None
        numbers, tokens = self.numbers(request), request.num_tokens
        by_manager = [
            ledger.causes(m, numbers, tokens, hit.num_tokens, hit.own_tokens[m.groups[0]]) for m in self.managers
        ]
        return tuple([by_manager[c] for c, _ in self.place])

    def numbers(self, request: Request) -> IntArray:
        """The prefix numbers of ``request``, brought up to its tokens."""
        path = request.path
        if path is None:
            path = request.path = PrefixPath()
        elif len(path.numbers) == len(request.block_hashes.keys) and self.index.is_current(path):
            return path.numbers
        if self.index.wants_sweep:
            self._sweep()
        numbers = self.index.extend(path, request.block_hashes)
        if len(self.index) > self.pool.keys.index.shape[1]:
            room = 2 * len(self.index)
            for pool in self.pools:
                pool.keys.grow(room)
            if self.ledger is not None:
                self.ledger.grow(room)
        return numbers

    def _sweep(self) -> None:
        """Recycle the prefix numbers that no block, no request and no ledger needs."""
        needed = np.zeros(len(self.index), bool)
        for pool in self.pools:
            used = pool.keys.numbers_in_use()[: len(needed)]
            needed[: len(used)] |= used
        if self.ledger is not None:
            self.ledger.mark_remembered(needed)
        spare = self.index.sweep(needed, (held.path for held in self.tables.values()))
        if self.ledger is not None:
            self.ledger.forget(spare)

    # ---- allocation

    def allocate(
        self,
        request: Request,
        held: RequestTables | None,
        hit: PrefixHit | None,
        allocation: Allocation,
        headroom: Headroom,
    ) -> KVCacheBlocks | Refusal:
        """Free what is dead, count what ``allocation`` needs and, if it fits, adopt ``hit``, allocate and key.

        Args:
            held: What the request holds; None admits it.

        Returns:
            The entries appended for new and look-ahead tokens, or why there are none. A refusal changes nothing
            except that dead blocks are free.

        Raises:
            StaleHitError: A block of ``hit`` was reused since the look-up.
            ManagerError: A plug-in raised; the call was rolled back.
        """
        mark(self.groups, held)
        try:
            if held is None:
                return self._admit(request, hit, allocation, headroom)
            return self._continue(request, held, allocation, headroom)
        except StaleHitError:
            raise
        except BaseException as error:
            self._roll_back(request, held)
            if not isinstance(error, Exception):
                raise
            raise self._manager_error(error, f"request {request.request_id!r}, {allocation}") from error

    def _admit(
        self, request: Request, hit: PrefixHit | None, allocation: Allocation, headroom: Headroom
    ) -> KVCacheBlocks | Refusal:
        request.path = request.path or PrefixPath()
        request.resumed_at = allocation.hit_tokens
        held = RequestTables(request, self.managers, request.path)
        hits: Sequence[IntArray] | None = None
        if hit is not None:
            hits = hit.by_manager
            if self.groups.are_stale(hits, allocation.hit_tokens, self.numbers(request)):
                raise StaleHitError(f"request {request.request_id!r}: the hit is out of date; look it up again")
            if self.groups.are_too_fresh(hits, allocation.hit_tokens):
                return Refusal.NOT_WRITTEN_YET
            if allocation.loads:
                hits = [m.live_part(h, allocation.tokens_before) for m, h in zip(self.managers, hits, strict=True)]
        return self._grow(request, held, hits, allocation, headroom)

    def _continue(
        self, request: Request, held: RequestTables, allocation: Allocation, headroom: Headroom
    ) -> KVCacheBlocks | Refusal:
        settled = max(0, allocation.tokens_before - request.num_in_flight_tokens)
        if settled > held.no_work_until:
            self.groups.free_dead(held, settled)
        if headroom is NO_HEADROOM and self.groups.has_room(held, allocation.slots):
            self._settle(held, request, allocation)
            return self.no_blocks
        return self._grow(request, held, None, allocation, headroom)

    def check_going_back(self, held: RequestTables, allocation: Allocation) -> None:
        """ValueError if a step that starts below the end of the last one needs what ``held`` no longer has."""
        g = self.groups.lacking_group(held, allocation)
        if g is not None:
            group = self.config.groups[g]
            raise ValueError(
                f"request {held.owner.request_id!r}: num_computed_tokens went back from {held.step_end} to "
                f"{allocation.tokens_before}, and group {group.name!r} ({group.spec.kind}) no longer has the "
                "blocks that this step needs; free the request and admit it again"
            )

    def _grow(
        self,
        request: Request,
        held: RequestTables,
        hits: Sequence[IntArray] | None,
        allocation: Allocation,
        headroom: Headroom,
    ) -> KVCacheBlocks | Refusal:
        """Count, then commit."""
        growths = self.groups.growths(held, hits, allocation)
        if not self.groups.fits(self.groups.demand(growths, hits), headroom.watermark + headroom.reserved):
            return Refusal.NO_BLOCKS
        if headroom.full_tokens:
            need = self.whole_request.demand(held, hits, allocation, headroom.full_tokens)
            if not self.groups.fits(need, headroom.watermark):
                return Refusal.WHOLE_REQUEST
        self.tables[request.request_id] = held
        added = self.groups.commit(held, hits, growths, allocation)
        self._settle(held, request, allocation)
        return added

    def blocks_to_finish(self, request: Request, allocation: Allocation, full: int) -> list[int]:
        """Per pool, the blocks that ``request`` takes until ``full`` tokens are computed.

        ``allocation`` admits it, without a hit.
        """
        held = RequestTables(request, self.managers, PrefixPath())
        step = self.groups.demand(self.groups.growths(held, None, allocation), None)
        rest = self.whole_request.demand(held, None, allocation, full)
        return [max(pair) for pair in zip(step, rest, strict=True)]

    def _settle(self, held: RequestTables, request: Request, allocation: Allocation) -> None:
        """All groups have their blocks: key what the step fills, and find out for how long no call has work."""
        after, keyable = allocation.tokens_after, allocation.keyable_tokens
        self.groups.settle(held, allocation.tokens_before, after)
        held.no_work_until = -1
        if keyable:
            if keyable >= held.keys_from:
                self._key(held, request, keyable)
                held.keys_from = keyable - keyable % self.hash_unit + self.hash_unit
            if after >= request.num_prompt_tokens:
                held.no_work_until = self.groups.no_work_until(held, keyable, after)
        held.step_end = after

    # ---- keys

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Key the blocks that are full at ``num_tokens``, if the request holds any.

        Raises:
            ManagerError: A plug-in raised; the call was rolled back.
        """
        held = self.tables.get(request.request_id)
        if held is None:
            return
        mark(self.groups, held)
        try:
            self._key(held, request, num_tokens)
        except BaseException as error:
            self._roll_back(request, held)
            if not isinstance(error, Exception):
                raise
            raise self._manager_error(error, f"request {request.request_id!r}") from error

    def _key(self, held: RequestTables, request: Request, num_tokens: int) -> None:
        if self.events is not None:
            self.events.request = request
        numbers = self.numbers(request)
        for manager, table in held.pairs:
            if manager.spec.cacheable and (upto := self.keyed_tokens(manager, num_tokens)):
                manager.register(table, numbers, upto, request)
        if self.ledger is not None:
            units = num_tokens // self.hash_unit
            self.ledger.computed(numbers[held.units_noted : units])
            held.units_noted = units

    def keyed_tokens(self, manager: SingleTypeKVCacheManager, num_tokens: int) -> int:
        """How many of ``num_tokens`` are worth keying in ``manager``."""
        raise NotImplementedError

    def forget(self, request: Request) -> None:
        """Drop the keys of every block, of any request, that is keyed under a prefix of ``request``."""
        if request.path is None:
            return
        numbers = self.numbers(request).tolist()
        for group in range(len(self.config.groups)):
            pool = self.groups.pool_of_group(group)
            pool.evict([block for number in numbers for block in pool.keys.blocks(group, number)])

    # ---- freeing

    def free(self, request: Request) -> None:
        """Free what ``request`` holds, each group's tail first."""
        held = self.tables.pop(request.request_id, None)
        if held is not None:
            self._release(held)

    def defer_free(self, request: Request) -> RequestTables | None:
        """End ``request`` but keep its blocks held until `free_deferred`."""
        held = self.tables.pop(request.request_id, None)
        if held is not None:
            self.deferred.append(held)
        return held

    def free_deferred(self, held: RequestTables) -> None:
        """Free what `defer_free` kept. Raises ValueError for anything else."""
        for i, kept in enumerate(self.deferred):
            if kept is held:
                del self.deferred[i]
                self._release(held)
                return
        raise ValueError(f"the blocks of request {held.owner.request_id!r} are not waiting to be freed")

    def _release(self, held: RequestTables) -> None:
        try:
            self.groups.release(held)
        except BaseException as error:
            recount(self.groups, self._holders())
            if not isinstance(error, Exception):
                raise
            raise self._manager_error(error, f"free of request {held.owner.request_id!r}") from error

    # ---- failures of plug-ins

    def _holders(self) -> list[RequestTables]:
        """All that hold blocks: requests, and those that have ended but whose blocks are still read."""
        return [*self.tables.values(), *self.deferred]

    def _roll_back(self, request: Request, held: RequestTables | None) -> None:
        if held is None:
            self.tables.pop(request.request_id, None)
        go_back(self.groups, held, self._holders())

    def _manager_error(self, error: Exception, where: str) -> ManagerError:
        if isinstance(error, ReuseOrderError):
            what = str(error)
        else:
            what = f"{self._raiser(error)} raised {type(error).__name__}: {error}"
        found = ManagerError(f"{where}: {what}; the call was rolled back")
        found.__cause__ = error  # compiled, "raise … from …" does not set it
        return found

    def _raiser(self, error: Exception) -> str:
        """The plug-in whose code raised: the innermost one in the traceback of ``error``."""
        parts: dict[int, str] = {id(self.retention): "retention policy"}
        for manager in self.managers:
            parts[id(manager)], parts[id(manager.spec)] = f"manager of {manager.spec.kind!r},", "spec"
        found, trace = "", error.__traceback__
        while trace is not None:
            owner = trace.tb_frame.f_locals.get("self")
            if id(owner) in parts and not type(owner).__module__.startswith("kvhybrid."):
                found = f"the {parts[id(owner)]} {type(owner).__module__}.{type(owner).__qualname__}"
            trace = trace.tb_next
        kinds = ", ".join(sorted({f"{type(m).__name__} ({m.spec.kind})" for m in self.managers}))
        return found or f"one of the managers {kinds}"
