"""The coordinator: spreads each call of the cache manager over the groups that share the pool."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kvhybrid.blocks import KVCacheBlocks, PrefixHit
from kvhybrid.cache_config import KVCacheConfig, KVCacheGroup
from kvhybrid.managers.arrays import EMPTY, IntArray
from kvhybrid.managers.base import GroupRules, Growth, SingleTypeKVCacheManager
from kvhybrid.managers.block_pool import BlockPool
from kvhybrid.managers.eviction import reuse_order
from kvhybrid.managers.prefix_index import PrefixIndex, PrefixPath
from kvhybrid.managers.retention import RetainedRequest, Retention
from kvhybrid.managers.search import LiveSetSearch
from kvhybrid.managers.table import BlockTable
from kvhybrid.request import Request
from kvhybrid.specs import registry


class CacheConfigError(ValueError):
    """A cache configuration that cannot work."""


class Step(NamedTuple):
    """Token counts of one call for slots."""

    total: int
    """Tokens that are there before the step: computed, adopted and loaded."""
    main: int
    """Tokens after the step."""
    slots: int
    """Tokens that need a slot: ``main`` and the look-ahead, at most the longest request."""
    hit_tokens: int
    """Tokens of the adopted hit."""
    loads: bool
    """Whether some tokens come from outside."""
    encoder: int
    """Encoder tokens that need a slot, 0 after the admission."""


@dataclass
class RequestTables:
    """What one request holds: a table per manager, and the numbers of its prefix."""

    tables: list[BlockTable]
    path: PrefixPath
    quiet_until: int = -1
    """Steps that end at or below this many tokens neither free, need nor key a block."""


@dataclass
class Counters:
    """Tokens per group since the start."""

    asked: int = 0
    hit: int = 0
    own: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))


class KVCacheCoordinator:
    """Base of the three coordinators: one pool, one manager per spec, and the order of work.

    Everywhere groups adopt, then allocate, then key, in index order; they free in index order, each tail first.
    """

    def __init__(
        self,
        config: KVCacheConfig,
        *,
        max_model_len: int,
        max_in_flight_tokens: int,
        retention_interval: int | None,
        eviction: str,
    ) -> None:
        self.config = config
        self.max_model_len = max_model_len
        self.max_in_flight_tokens = max_in_flight_tokens
        self.retention = Retention(
            retention_interval, config.scheduler_block_size, any(group.draft for group in config.groups)
        )
        self.sub_block_hits = self._sub_block_hits()
        self.alignment = config.hash_unit if self.sub_block_hits else config.scheduler_block_size
        self.pool = BlockPool(config.num_blocks, len(config.groups), reuse_order(eviction))
        self.index = PrefixIndex(room=max(1 << 16, 4 * config.num_blocks))
        self.managers: list[SingleTypeKVCacheManager] = []
        self.place: list[tuple[int, int]] = [(0, 0)] * len(config.groups)
        """For every group, its manager and its row in that manager's tables."""
        self._build_managers()
        self.tables: dict[str, RequestTables] = {}
        self.counters = Counters(own=np.zeros(len(config.groups), np.int64))

    def _sub_block_hits(self) -> bool:
        return False

    def _build_managers(self) -> None:
        by_spec: dict[object, list[int]] = {}
        for g, group in enumerate(self.config.groups):
            by_spec.setdefault(group.spec, []).append(g)
        for members in by_spec.values():
            group = self.config.groups[members[0]]
            for i, g in enumerate(members):
                self.place[g] = (len(self.managers), i)
            self.managers.append(self._manager(group, members))

    def _manager(self, group: KVCacheGroup, members: list[int]) -> SingleTypeKVCacheManager:
        rules = GroupRules(
            groups=tuple(members),
            block_size=self.config.block_size_of(group.spec),
            hash_unit=self.config.hash_unit,
            alignment=self.alignment,
            sub_block_hits=self.sub_block_hits,
            drops=any(self.config.groups[g].draft for g in members),
            retention=self.retention,
        )
        manager: SingleTypeKVCacheManager = registry.entry_of(group.spec).manager_class()(
            group.spec, self.pool, rules
        )
        return manager

    # ---- look-up

    def find_longest_cache_hit(self, request: Request, limit: int) -> PrefixHit:
        """The longest prefix of at most ``limit`` tokens from which every cacheable group can resume."""
        raise NotImplementedError

    def keyed_tokens(self, manager: SingleTypeKVCacheManager, num_tokens: int) -> int:
        """How many of ``num_tokens`` are worth keying in ``manager``: 0 without prefix caching."""
        raise NotImplementedError

    def numbers(self, request: Request) -> IntArray:
        """The prefix numbers of ``request``, brought up to its tokens."""
        if self.index.wants_sweep:
            self.index.sweep(self.pool.numbers_in_use(), (held.path for held in self.tables.values()))
        if request.path is None:
            request.path = PrefixPath()
        numbers = self.index.extend(request.path, request.block_hashes)
        self.pool.grow_index(len(self.index))
        return numbers

    def no_hit(self) -> PrefixHit:
        groups = len(self.config.groups)
        return PrefixHit((EMPTY,) * groups, 0, 0, (0,) * groups, None)

    # ---- slots

    def free_dead(self, held: RequestTables, settled: int) -> None:
        """Give back the blocks that nothing reads from ``settled`` tokens on."""
        spans = [manager.dead(table, settled) for manager, table in zip(self.managers, held.tables, strict=True)]
        if any(spans):
            for c, i in self.place:
                if spans[c]:
                    self.managers[c].drop(held.tables[c], i, spans[c])

    def live_hits(self, hit: KVCacheBlocks, step: Step) -> list[IntArray]:
        """Per manager, the part of ``hit`` that is still read once the tokens from outside are there."""
        hits = [np.stack([hit.ids[g] for g in manager.groups]) for manager in self.managers]
        if not step.loads:
            return hits
        return [manager.live_part(h, step.total) for manager, h in zip(self.managers, hits, strict=True)]

    def growths(self, tables: list[BlockTable], hits: list[IntArray] | None, step: Step) -> list[Growth]:
        """What every manager must add for ``step``; changes nothing."""
        found: list[Growth] = []
        for c, manager in enumerate(self.managers):
            if manager.spec.source == "encoder":
                found.append(manager.growth(tables[c], 0, 0, step.encoder, step.encoder, False))
                continue
            adopted = hits[c].shape[1] if hits else 0
            growth = manager.growth(tables[c], adopted, step.total, step.main, step.slots, step.loads)
            if adopted and step.hit_tokens % manager.block_size and hits and hits[c][0, -1]:
                growth = growth._replace(copies=1)
            found.append(growth)
        return found

    def blocks_needed(self, growths: list[Growth]) -> int:
        return sum(g.blocks * len(m.groups) for g, m in zip(growths, self.managers, strict=True))

    def blocks_to_hold(self, hits: list[IntArray]) -> int:
        """Blocks of a hit that lie in the free queue: holding them takes as many from it."""
        return sum(self.pool.count_free(hit[hit > 0]) for hit in hits)

    def most_blocks(self, tables: list[BlockTable], hits: list[IntArray] | None, step: Step, full: int) -> int:
        """Blocks that the request may need until all its ``full`` tokens are computed, the bound of each group
        taken from its live set."""
        need = 0
        for c, manager in enumerate(self.managers):
            size = manager.block_size
            if manager.spec.source == "encoder":
                need += max(0, -(-step.encoder // size) - tables[c].length) * len(manager.groups)
                continue
            adopted = hits[c].shape[1] if hits else 0
            cap = manager.spec.admission_blocks(self.max_in_flight_tokens, self.max_model_len, size)
            most = manager.most_blocks(tables[c], adopted, step.total, step.main, full, cap)
            private = int(bool(adopted) and step.hit_tokens % size > 0)
            need += (most + private) * len(manager.groups)
        return need

    def commit(
        self, held: RequestTables, hits: list[IntArray] | None, growths: list[Growth], step: Step
    ) -> KVCacheBlocks:
        """Adopt ``hits`` and take the counted blocks. The caller has made sure that they are there."""
        if hits:
            for manager, table, hit in zip(self.managers, held.tables, hits, strict=True):
                manager.adopt(table, hit, step.hit_tokens)
        loaded = self.pool.take(
            sum(len(g.loaded) * len(m.groups) for g, m in zip(growths, self.managers, strict=True))
        )
        fresh = self.pool.take(
            sum((len(g.fresh) + g.copies) * len(m.groups) for g, m in zip(growths, self.managers, strict=True))
        )
        added: list[IntArray] = []
        at_loaded = at_fresh = 0
        for c, i in self.place:
            growth = growths[c]
            end_loaded = at_loaded + len(growth.loaded)
            end_fresh = at_fresh + len(growth.fresh) + growth.copies
            added.append(
                self.managers[c].extend(
                    held.tables[c],
                    i,
                    growth,
                    loaded[at_loaded:end_loaded],
                    fresh[at_fresh:end_fresh],
                    step.hit_tokens,
                )
            )
            at_loaded, at_fresh = end_loaded, end_fresh
        for manager, table in zip(self.managers, held.tables, strict=True):
            manager.settle(table, step.total, step.main)
        return KVCacheBlocks(tuple(added))

    def cache_blocks(self, held: RequestTables, request: Request, num_tokens: int) -> None:
        """Key what is full at ``num_tokens``."""
        numbers = self.numbers(request)
        retained = RetainedRequest(request.num_prompt_tokens, request.shared_prefix_boundary)
        for manager, table in zip(self.managers, held.tables, strict=True):
            if manager.spec.cacheable and (upto := self.keyed_tokens(manager, num_tokens)):
                manager.register(table, numbers, upto, retained)

    def free(self, request_id: str) -> None:
        """Give back everything that the request holds."""
        held = self.tables.pop(request_id, None)
        if held is not None:
            for c, i in self.place:
                self.managers[c].release(held.tables[c], i)

    # ---- copies, steps, keys

    def new_step_starts(self) -> None:
        for manager in self.managers:
            manager.keyed_this_step.clear()

    def pending_copies(self) -> list[tuple[int, int]]:
        return [pair for c, i in self.place for pair in self.managers[c].pending_copies[i]]

    def release_copies(self, copies: Iterable[tuple[int, int]]) -> None:
        """Let go of both ends of copies that have run."""
        ends = [block for pair in copies for block in pair]
        if ends:
            self.pool.release_pairs(np.array(ends, np.int32))

    def clear_copies(self) -> None:
        for c, i in self.place:
            self.managers[c].pending_copies[i].clear()


class KVCacheCoordinatorNoPrefixCache(KVCacheCoordinator):
    """Prefix caching off: nothing is keyed and nothing is hit."""

    def find_longest_cache_hit(self, request: Request, limit: int) -> PrefixHit:
        return self.no_hit()

    def keyed_tokens(self, manager: SingleTypeKVCacheManager, num_tokens: int) -> int:
        return 0


class UnitaryKVCacheCoordinator(KVCacheCoordinator):
    """One group: its own longest hit is the hit."""

    def find_longest_cache_hit(self, request: Request, limit: int) -> PrefixHit:
        search = self.managers[0].search(self.numbers(request))
        p = search.at_most(limit)
        return PrefixHit((search.blocks(p)[0],), p, 0, (p,), None)

    def keyed_tokens(self, manager: SingleTypeKVCacheManager, num_tokens: int) -> int:
        return num_tokens


class HybridKVCacheCoordinator(KVCacheCoordinator):
    """Several groups: a hit is a length from which all of them can resume."""

    def _sub_block_hits(self) -> bool:
        """Whether hits may end inside a block: some state's block is longer than a prefix key (or, under context
        parallelism, as long), and every other group either allows it or has blocks as short as a key."""
        unit, config = self.config.hash_unit, self.config
        cacheable = [group.spec for group in config.groups if group.spec.cacheable]
        finer = any(
            spec.state and (spec.block_size > unit or (config.context_parallel > 1 and spec.block_size == unit))
            for spec in cacheable
        )
        return finer and all(spec.sub_block or config.block_size_of(spec) == unit for spec in cacheable)

    def find_longest_cache_hit(self, request: Request, limit: int) -> PrefixHit:
        """The greatest common fixed point: each group in turn cuts the candidate to what it accepts, until none
        cuts. Candidates only move down, so the order of the groups cannot change the answer."""
        numbers = self.numbers(request)
        cacheable = [c for c, manager in enumerate(self.managers) if manager.spec.cacheable]
        order = sorted(cacheable, key=lambda c: not self.managers[c].spec.prefix)
        searches = {c: self.managers[c].search(numbers) for c in order}
        own = {c: search.at_most(limit) for c, search in searches.items()}
        p, reach, cut_by, waiting = limit, 0, -1, len(order)
        while waiting and p:
            for c in order:
                found = searches[c].at_most(p)
                if found > reach and searches[c].reads_any(found):
                    reach = found
                if found < p:
                    p, cut_by, waiting = found, c, len(order)
                waiting -= 1
                if not waiting or not p:
                    break
        return PrefixHit(
            ids=self._hit_blocks(searches, p),
            num_tokens=p,
            junction=reach if reach > p else 0,
            own_tokens=tuple(own.get(c, 0) for c, _ in self.place),
            cut_by=self.managers[cut_by].groups[0] if cut_by >= 0 and p < max(own.values()) else None,
        )

    def _hit_blocks(self, searches: dict[int, LiveSetSearch], p: int) -> tuple[IntArray, ...]:
        if not p:
            return (EMPTY,) * len(self.place)
        blocks = {c: search.blocks(p) for c, search in searches.items()}
        return tuple(blocks[c][i] if c in blocks else EMPTY for c, i in self.place)

    def keyed_tokens(self, manager: SingleTypeKVCacheManager, num_tokens: int) -> int:
        """Only lengths on which a hit can end, and the margin that a draft model makes necessary above them."""
        if self.sub_block_hits:
            return num_tokens
        aligned = num_tokens - num_tokens % self.alignment
        return min(num_tokens, aligned + manager.margin) if aligned else 0


def get_kv_cache_coordinator(
    config: KVCacheConfig,
    *,
    enable_caching: bool,
    max_model_len: int,
    max_in_flight_tokens: int,
    retention_interval: int | None,
    eviction: str,
) -> KVCacheCoordinator:
    """The coordinator for ``config``: without prefix caching, for one group, or for several."""
    check_config(config, enable_caching, retention_interval)
    kind: type[KVCacheCoordinator] = HybridKVCacheCoordinator
    if not enable_caching:
        kind = KVCacheCoordinatorNoPrefixCache
    elif len(config.groups) == 1:
        kind = UnitaryKVCacheCoordinator
    return kind(
        config,
        max_model_len=max_model_len,
        max_in_flight_tokens=max_in_flight_tokens,
        retention_interval=retention_interval,
        eviction=eviction,
    )


def check_config(config: KVCacheConfig, enable_caching: bool, retention_interval: int | None) -> None:
    """Refuse what cannot work, naming the key, what was found and what is accepted."""
    if not config.groups:
        raise CacheConfigError("groups: a cache needs at least one group, found none")
    if config.context_parallel > 1:
        for group in config.groups:
            if not group.spec.context_parallel:
                raise CacheConfigError(
                    f"group {group.name!r}: a {group.spec.kind} group cannot run under context parallelism "
                    f"(context_parallel = {config.context_parallel})"
                )
    if not enable_caching:
        return
    for group in config.groups:
        if not group.spec.cacheable and group.spec.source == "decoder":
            raise CacheConfigError(
                f"group {group.name!r}: a {group.spec.kind} group cannot be resumed from a prefix; "
                "turn prefix caching off or use another spec"
            )
    cacheable = [group for group in config.groups if group.spec.cacheable]
    if not cacheable:
        raise CacheConfigError("prefix caching needs a group that can be cached; turn it off for this model")
    unit = config.hash_unit
    for group in cacheable:
        size = config.block_size_of(group.spec)
        if size % unit or (len(config.groups) == 1 and size != unit):
            accepted = "equal" if len(config.groups) == 1 else "divide"
            raise CacheConfigError(
                f"hash_block_size = {unit} must {accepted} the block size of group {group.name!r}, {size}"
            )
    common = config.scheduler_block_size
    if retention_interval is not None and (retention_interval < 0 or retention_interval % common):
        raise CacheConfigError(
            f"retention_interval = {retention_interval} must be 0 or a multiple of the common block size {common}"
        )
