"""The contract of this folder: the groups, their managers and pools, and the order of work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

import numpy as np
from mypy_extensions import mypyc_attr

from kvhybrid.cache.blocks import KVCacheBlocks, PrefixHit
from kvhybrid.cache.config import KVCacheConfig
from kvhybrid.cache.coordinators.step import RequestTables, Step
from kvhybrid.cache.miss_causes import MissCauses
from kvhybrid.cache.misses import MissLedger
from kvhybrid.cache.request import Request
from kvhybrid.managers.arrays import EMPTY, IntArray
from kvhybrid.managers.base import GroupRules, Growth, SingleTypeKVCacheManager
from kvhybrid.managers.eviction import reuse_order
from kvhybrid.managers.pool.block_pool import BlockPool
from kvhybrid.managers.prefix.index import PrefixIndex, PrefixPath
from kvhybrid.managers.retention.base import Retention
from kvhybrid.managers.table import BlockTable
from kvhybrid.specs import registry

NO_ROWS: Final[IntArray] = np.zeros((1, 0), np.int32)


@mypyc_attr(allow_interpreted_subclasses=True)
class KVCacheCoordinator:
    """Spreads each call over the groups: one manager per spec, one pool that they share.

    The order of work never varies, since block ids and the free queue depend on it: hits of all groups are held
    before any block is taken, and groups come by their index, also when they give blocks back from the tail.
    A group with ``private_blocks`` has a pool of its own: its blocks come from there and go home there.
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
        self.index = PrefixIndex(room=max(1 << 16, 4 * config.num_blocks))
        self.tables: dict[str, RequestTables] = {}
        self.deferred: list[RequestTables] = []
        """What finished requests still hold until somebody has read it."""
        self.ledger: MissLedger | None = None

        order, num_groups = reuse_order(eviction), len(config.groups)
        self.pool = BlockPool(config.num_blocks, num_groups, order)
        self.pools = [self.pool]
        self.managers: list[SingleTypeKVCacheManager] = []
        self.pool_of: list[int] = []
        """For every manager, the index of its pool."""
        self.place: list[tuple[int, int]] = [(0, 0)] * num_groups
        """For every group, its manager and its row in that manager's tables."""
        for members in config.lockstep():
            private = config.groups[members[0]].private_blocks
            if private:
                self.pools.append(BlockPool(private, num_groups, order))
            self._add_manager(members, len(self.pools) - 1 if private else 0)
        self.taken: list[list[IntArray]] = [[] for _ in self.pools]
        """Per pool, the blocks taken by the step in hand."""
        self.batches = self._batches()
        """The groups in index order, as runs of neighbours in one manager: (manager, its rows)."""
        self._shares = [
            (pool, self.taken[p], [(b, c, ids) for b, c, ids in self._groups_of_batches() if self.pool_of[c] == p])
            for p, pool in enumerate(self.pools)
        ]
        """Every pool, the blocks taken from it by the step in hand, and who shares it: batch, manager, groups."""
        cacheable = [c for c, manager in enumerate(self.managers) if manager.spec.cacheable]
        self.search_order = sorted(cacheable, key=lambda c: not self.managers[c].spec.prefix)
        """The managers that can have hits, those first whose misses end every longer hit."""
        self.nothing = self._no_hit()
        """The hit of no tokens."""
        self._no_rows: list[IntArray] = [NO_ROWS] * len(self.batches)
        self._encodes = [manager.spec.source == "encoder" for manager in self.managers]

    def _sub_block_hits(self) -> bool:
        return False

    def _add_manager(self, members: tuple[int, ...], pool: int) -> None:
        spec = self.config.groups[members[0]].spec
        rules = GroupRules(
            groups=members,
            block_size=self.config.block_size_of(spec),
            hash_unit=self.config.hash_unit,
            alignment=self.alignment,
            sub_block_hits=self.sub_block_hits,
            drops=any(self.config.groups[g].draft for g in members),
            retention=self.retention,
        )
        for i, g in enumerate(members):
            self.place[g] = (len(self.managers), i)
        self.managers.append(registry.entry_of(spec).manager_class()(spec, self.pools[pool], rules))
        self.pool_of.append(pool)

    def _batches(self) -> list[tuple[int, slice]]:
        runs: list[tuple[int, slice]] = []
        for c, i in self.place:
            if runs and runs[-1][0] == c and runs[-1][1].stop == i:
                runs[-1] = (c, slice(runs[-1][1].start, i + 1))
            else:
                runs.append((c, slice(i, i + 1)))
        return runs

    def _groups_of_batches(self) -> list[tuple[int, int, IntArray]]:
        return [(b, c, self.managers[c].group_ids[rows]) for b, (c, rows) in enumerate(self.batches)]

    def pool_of_group(self, group: int) -> BlockPool:
        """The pool that the blocks of ``group`` come from."""
        return self.pools[self.pool_of[self.place[group][0]]]

    # ---- look-up

    def find_longest_cache_hit(self, request: Request, limit: int) -> PrefixHit:
        """The longest prefix of at most ``limit`` tokens from which every cacheable group can resume."""
        raise NotImplementedError

    def miss_causes(self, request: Request, hit: PrefixHit) -> tuple[MissCauses, ...]:
        """Per group, where the tokens went that ``hit``, just found, lacks. Needs the ledger."""
        assert self.ledger is not None
        numbers, tokens = self.numbers(request), request.num_tokens
        by_manager = [
            self.ledger.causes(m, numbers, tokens, hit.num_tokens, hit.own_tokens[m.groups[0]])
            for m in self.managers
        ]
        return tuple(by_manager[c] for c, _ in self.place)

    def keyed_tokens(self, manager: SingleTypeKVCacheManager, num_tokens: int) -> int:
        """How many of ``num_tokens`` are worth keying in ``manager``: 0 without prefix caching."""
        raise NotImplementedError

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
        if len(self.index) > self.pool.index.shape[1]:
            room = 2 * len(self.index)
            for pool in self.pools:
                pool.grow_index(room)
            if self.ledger is not None:
                self.ledger.grow(room)
        return numbers

    def _sweep(self) -> None:
        """Recycle the prefix numbers that no block, no request and no memory of misses needs."""
        needed = np.zeros(len(self.index), bool)
        for pool in self.pools:
            used = pool.numbers_in_use()[: len(needed)]
            needed[: len(used)] |= used
        if self.ledger is not None:
            self.ledger.mark_remembered(needed)
        spare = self.index.sweep(needed, (held.path for held in self.tables.values()))
        if self.ledger is not None:
            self.ledger.forget(spare)

    def _no_hit(self) -> PrefixHit:
        groups = len(self.config.groups)
        nothing = tuple(np.zeros((len(m.groups), 0), np.int32) for m in self.managers)
        return PrefixHit((EMPTY,) * groups, 0, 0, (0,) * groups, None, nothing)

    # ---- slots: freeing, counting, committing

    def new_tables(self, owner: Request) -> RequestTables:
        """Empty tables for ``owner``."""
        owner.path = owner.path or PrefixPath()
        return RequestTables(owner, self.managers, owner.path)

    def free_dead(self, held: RequestTables, settled: int) -> None:
        """Give back the blocks that nothing reads from ``settled`` tokens on."""
        spans = [manager.dead(table, settled) for manager, table in held.pairs]
        if any(spans):
            for c, rows in self.batches:
                if spans[c]:
                    self.managers[c].drop(held.tables[c], rows, spans[c])

    def are_stale(self, hits: Sequence[IntArray], request: Request) -> bool:
        """Whether some block of ``hits`` was reused since they were looked up."""
        numbers = self.numbers(request)
        for c, manager in enumerate(self.managers):  # noqa: SIM110, a generator would double the cost
            if manager.is_stale(hits[c], numbers):
                return True
        return False

    def are_too_fresh(self, hits: Sequence[IntArray], num_tokens: int) -> bool:
        """Whether some group would have to read what only the current step's forward pass writes."""
        for c, manager in enumerate(self.managers):  # noqa: SIM110, as above
            if manager.is_too_fresh(hits[c], num_tokens):
                return True
        return False

    def live_parts(self, hits: Sequence[IntArray], num_tokens: int) -> Sequence[IntArray]:
        """The parts of ``hits`` that are still read once ``num_tokens`` are there."""
        return [m.live_part(h, num_tokens) for m, h in zip(self.managers, hits, strict=True)]

    def has_room(self, held: RequestTables, slots: int) -> bool:
        """Whether a later step of ``held`` needs no block: everything that it writes has its entry."""
        for manager, table in held.pairs:  # noqa: SIM110, a generator would double the cost
            if not manager.has_room(table, slots):
                return False
        return True

    def growths(self, tables: list[BlockTable], hits: Sequence[IntArray] | None, step: Step) -> list[Growth]:
        """What every manager must add for ``step``; changes nothing."""
        found: list[Growth] = []
        for c, manager in enumerate(self.managers):
            if self._encodes[c]:
                found.append(manager.growth(tables[c], 0, 0, step.encoder, step.encoder, False))
                continue
            adopted = hits[c].shape[1] if hits else 0
            growth = manager.growth(tables[c], adopted, step.total, step.main, step.slots, step.loads)
            if adopted and step.hit_tokens % manager.block_size and hits and hits[c][0, -1]:
                growth.copies = 1
            found.append(growth)
        return found

    def demand(self, growths: list[Growth], hits: Sequence[IntArray] | None) -> list[int]:
        """Per pool, the free blocks that a step takes: new ones, and adopted ones that lie in the free queue."""
        need = [0] * len(self.pools)
        for c, manager in enumerate(self.managers):
            need[self.pool_of[c]] += growths[c].blocks * len(manager.groups)
        return self._with_free_hits(need, hits)

    def demand_to_the_end(
        self, tables: list[BlockTable], hits: Sequence[IntArray] | None, step: Step, full: int
    ) -> list[int]:
        """Per pool, the free blocks that the request may need until all its ``full`` tokens are computed."""
        need = [0] * len(self.pools)
        for c, manager in enumerate(self.managers):
            size = manager.block_size
            if self._encodes[c]:
                most = max(0, -(-step.encoder // size) - tables[c].length)
            else:
                adopted = hits[c].shape[1] if hits else 0
                cap = manager.spec.admission_blocks(self.max_in_flight_tokens, self.max_model_len, size)
                most = manager.most_blocks(tables[c], adopted, step.total, step.main, full, cap)
                most += int(bool(adopted) and step.hit_tokens % size > 0)
            need[self.pool_of[c]] += most * len(manager.groups)
        return self._with_free_hits(need, hits)

    def _with_free_hits(self, need: list[int], hits: Sequence[IntArray] | None) -> list[int]:
        if hits:
            for c, manager in enumerate(self.managers):
                need[self.pool_of[c]] += manager.pool.count_free(hits[c])
        return need

    def fits(self, need: list[int], spare: int) -> bool:
        """Whether every pool has the blocks of ``need``, and the shared one ``spare`` more."""
        if need[0] + spare > self.pool.num_free:
            return False
        return len(need) == 1 or all(
            count <= pool.num_free for count, pool in zip(need[1:], self.pools[1:], strict=True)
        )

    def commit(
        self, held: RequestTables, hits: Sequence[IntArray] | None, growths: list[Growth], step: Step
    ) -> KVCacheBlocks:
        """Adopt ``hits`` and take the counted blocks. The caller has made sure that they are there."""
        if hits:
            for c, (manager, table) in enumerate(held.pairs):
                table.reserve(growths[c].length)
                manager.adopt(table, hits[c], step.hit_tokens)
        loaded = self._take([len(g.loaded) for g in growths]) if step.loads else self._no_rows
        fresh = self._take([len(g.fresh) + g.copies for g in growths])
        added: list[IntArray] = []
        for b, (c, rows) in enumerate(self.batches):
            growth, table = growths[c], held.tables[c]
            new = self.managers[c].extend(table, rows, growth, loaded[b], fresh[b], step.hit_tokens)
            added += [new[i] for i in range(len(new))]  # numpy's iterators are slow to end
        self.settle(held, step)
        return KVCacheBlocks(tuple(added))

    def settle(self, held: RequestTables, step: Step) -> None:
        """All groups have what ``step`` needs."""
        for manager, table in held.pairs:
            manager.settle(table, step.total, step.main)

    def quiet_until(self, held: RequestTables, keyed: int, main: int) -> int:
        """How far the request may grow, token by token, before any of its groups has work to do."""
        longest = self.max_model_len
        for manager, table in held.pairs:
            longest = min(longest, manager.quiet_until(table, keyed, main))
        return longest

    def _take(self, counts: list[int]) -> list[IntArray]:
        """For every batch its blocks, a row per group, ``counts`` of them by manager; each pool gives all of its
        own at once."""
        if not any(counts):
            return self._no_rows
        parts = self._no_rows.copy()
        for pool, taken, batches in self._shares:
            rows = pool.take_rows([(groups, counts[c]) for _, c, groups in batches])
            for i, (b, _, _) in enumerate(batches):
                parts[b] = rows[i]
            taken += rows
        return parts

    # ---- keys, freeing, copies

    def cache_blocks(self, held: RequestTables, request: Request, num_tokens: int) -> None:
        """Key what is full at ``num_tokens``."""
        numbers = self.numbers(request)
        for manager, table in held.pairs:
            if manager.spec.cacheable and (upto := self.keyed_tokens(manager, num_tokens)):
                manager.register(table, numbers, upto, request)
        if self.ledger is not None:
            units = num_tokens // self.config.hash_unit
            self.ledger.computed(numbers[held.units_noted : units])
            held.units_noted = units

    def release(self, held: RequestTables) -> None:
        """Give back every block of ``held``, which is on no list any more."""
        for c, rows in self.batches:
            self.managers[c].release(held.tables[c], rows)

    def holders(self) -> Iterator[RequestTables]:
        """All that hold blocks: requests, and those that are done and whose blocks are still read."""
        return chain(self.tables.values(), self.deferred)

    def new_step_starts(self) -> None:
        for manager in self.managers:
            if manager.written_from:
                manager.written_from.clear()

    def pending_copies(self) -> list[tuple[int, int]]:
        """Group by group, (source, target) of the copies that have not run, oldest first."""
        if not self._has_copies():
            return []
        return [pair for c, i in self.place for pair in self.managers[c].pending_copies[i]]

    def _has_copies(self) -> bool:
        """Whether copies are pending: groups in lockstep have as many."""
        return any(manager.pending_copies[0] for manager in self.managers)

    def release_copies(self) -> None:
        """The pending copies have run: let go of both ends of each."""
        if not self._has_copies():
            return
        for p, pool in enumerate(self.pools):
            ends: list[int] = []
            for c, i in self.place:
                if self.pool_of[c] == p:
                    ends.extend(chain.from_iterable(self.managers[c].pending_copies[i]))
                    self.managers[c].pending_copies[i].clear()
            if ends:
                pool.release(np.array(ends, np.int32))
