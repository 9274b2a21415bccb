"""The groups of one cache: a single-type manager per spec, and the pools that their blocks come from."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

import numpy as np

from kvhybrid.cache.blocks import KVCacheBlocks
from kvhybrid.cache.config import KVCacheConfig
from kvhybrid.cache.coordinators.allocation import Allocation
from kvhybrid.cache.coordinators.request_tables import RequestTables
from kvhybrid.cache.request import Request
from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.managers.eviction.base import MakeOrder
from kvhybrid.managers.growth import Growth
from kvhybrid.managers.kernel.plain import REUSABLE
from kvhybrid.managers.pool.block_pool import BlockPool
from kvhybrid.managers.registry import manager_of
from kvhybrid.managers.retention.base import Retention
from kvhybrid.managers.rules import GroupRules

NO_ROWS: Final[IntArray] = np.zeros((1, 0), np.int32)


class Groups:
    """Carries out each part of an allocation for all groups.

    The order of work never varies, since block ids and the free queue depend on it: hits of all groups are held
    before any block is taken, and groups are processed in index order, also when they free blocks from the tail.

    Groups of equal spec on the same pool have one manager, which keeps them in lockstep. All groups share one
    pool, apart from those with ``private_blocks``: their blocks are allocated from a pool of their own and
    returned to it.
    """

    def __init__(
        self,
        config: KVCacheConfig,
        order: MakeOrder,
        retention: Retention,
        alignment: int,
        sub_block_hits: bool,
        max_model_len: int,
        max_in_flight_tokens: int,
    ) -> None:
        """``alignment`` and ``sub_block_hits`` are those of `GroupRules`."""
        self.max_model_len = max_model_len
        self.max_in_flight_tokens = max_in_flight_tokens
        self.config = config
        num_groups = len(config.groups)
        self.pools: list[BlockPool] = []
        """The shared pool first."""
        self.managers: list[SingleTypeKVCacheManager] = []
        self.pool_of: list[int] = []
        """For every manager, the index of its pool."""
        self.place: list[tuple[int, int]] = [(0, 0)] * num_groups
        """For every group, its manager and its row in that manager's tables."""
        self._make_pools(order)
        for members in config.lockstep():
            spec, pool = config.groups[members[0]].spec, self.pool_of[len(self.managers)]
            rules = GroupRules(
                groups=members,
                block_size=config.block_size_of(spec),
                hash_unit=config.hash_unit,
                alignment=alignment,
                sub_block_hits=sub_block_hits,
                drops=any(config.groups[g].draft for g in members),
                retention=retention,
            )
            for i, g in enumerate(members):
                self.place[g] = (len(self.managers), i)
            self.managers.append(manager_of(type(spec))(spec, self.pools[pool], rules))
        self.encodes = [manager.spec.source == "encoder" for manager in self.managers]
        """For every manager, whether its blocks hold the encoder's tokens."""
        self.taken: list[list[IntArray]] = [[] for _ in self.pools]
        """Per pool, the blocks that the current call has taken from it."""
        self._keys = [pool.keys for pool in self.pools]
        self.batches = self._batches()
        """The groups in index order, as runs of neighbours in one manager: (manager, its rows)."""
        self._shares = [
            (pool, self.taken[p], [(b, c, ids) for b, c, ids in self._groups_of_batches() if self.pool_of[c] == p])
            for p, pool in enumerate(self.pools)
        ]
        """Every pool, the blocks taken from it by the current call, and its users: batch, manager, groups."""
        self._no_rows: list[IntArray] = [NO_ROWS] * len(self.batches)
        """What `_take` returns if no blocks are needed."""

    def _make_pools(self, order: MakeOrder) -> None:
        """Create ``pools`` and ``pool_of``."""
        num_groups = len(self.config.groups)
        self.pools.append(BlockPool(self.config.num_blocks, num_groups, order))
        for members in self.config.lockstep():
            private = self.config.groups[members[0]].private_blocks
            self.pool_of.append(len(self.pools) if private else 0)
            if private:
                self.pools.append(BlockPool(private, num_groups, order))

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

    @property
    def num_free(self) -> int:
        """Blocks of the shared pool that no request holds, cached ones included."""
        return self.pools[0].num_free

    @property
    def usage(self) -> float:
        """Share of what `num_free` counts that requests hold, 0 to 1."""
        usable = self.config.num_usable
        return 1.0 - self.num_free / usable if usable else 0.0

    def unused(self) -> list[int]:
        """Per pool, the free blocks without a key that only its own groups can take."""
        shared: list[int] = [0]
        return shared + [pool.num_free - int(pool.counts[REUSABLE].sum()) for pool in self.pools[1:]]

    def shortage(self, need: list[int]) -> tuple[int, int]:
        """What a request that takes ``need`` blocks of the pools needs, and what an empty cache has."""
        pairs = [(count, pool.num_blocks - 1) for count, pool in zip(need, self.pools, strict=True)]
        short = [pair for pair in pairs if pair[0] > pair[1]]
        return short[0] if short else pairs[0]

    # ---- an allocation: free, count, commit

    def free_dead(self, held: RequestTables, settled: int) -> None:
        """Free the blocks that no token from ``settled`` on reads."""
        spans = [manager.dead(table, settled) for manager, table in held.pairs]
        if any(spans):
            self._releases_for(held.owner, is_end=False)
            for c, rows in self.batches:
                if spans[c]:
                    self.managers[c].drop(held.tables[c], rows, spans[c])

    def are_stale(self, hits: Sequence[IntArray], num_tokens: int, numbers: IntArray) -> bool:
        """Whether some block of ``hits``, of ``num_tokens`` on path ``numbers``, was reused since the look-up."""
        for c, manager in enumerate(self.managers):  # noqa: SIM110, a generator would double the cost
            if manager.is_stale(hits[c], num_tokens, numbers):
                return True
        return False

    def are_too_fresh(self, hits: Sequence[IntArray], num_tokens: int) -> bool:
        """Whether some group would have to read what only the current step's forward pass writes."""
        for c, manager in enumerate(self.managers):  # noqa: SIM110, as above
            if manager.is_too_fresh(hits[c], num_tokens):
                return True
        return False

    def has_room(self, held: RequestTables, slots: int) -> bool:
        """Whether a later step of ``held`` needs no block for ``slots`` tokens, since all of them have entries."""
        for manager, table in held.pairs:  # noqa: SIM110, as above
            if not manager.has_room(table, slots):
                return False
        return True

    def lacking_group(self, held: RequestTables, allocation: Allocation) -> int | None:
        """The first group that lacks blocks for a step that starts below the end of the last one, if any."""
        for manager, table in held.pairs:
            if not manager.can_go_back(table, allocation.tokens_before, allocation.tokens_after):
                return manager.groups[0]
        return None

    def growths(
        self, held: RequestTables, hits: Sequence[IntArray] | None, allocation: Allocation
    ) -> list[Growth]:
        """What every manager must add for ``allocation``; changes nothing."""
        before, after = allocation.tokens_before, allocation.tokens_after
        found: list[Growth] = []
        for c, (manager, table) in enumerate(held.pairs):
            if self.encodes[c]:
                encoder = allocation.encoder_tokens
                found.append(manager.growth(table, 0, 0, encoder, encoder, False))
                continue
            adopted = hits[c].shape[1] if hits else 0
            growth = manager.growth(table, adopted, before, after, allocation.slots, allocation.loads)
            if adopted and allocation.hit_tokens % manager.block_size and hits and hits[c][0, -1]:
                growth.copies = 1
            found.append(growth)
        return found

    def demand(self, growths: list[Growth], hits: Sequence[IntArray] | None) -> list[int]:
        """Per pool, the free blocks that a step takes: new ones, and adopted ones from the free queue."""
        need = [0] * len(self.pools)
        for c, manager in enumerate(self.managers):
            need[self.pool_of[c]] += growths[c].blocks * len(manager.groups)
        if hits:
            for c, manager in enumerate(self.managers):
                need[self.pool_of[c]] += manager.pool.count_free(hits[c])
        return need

    def fits(self, need: list[int], spare: int) -> bool:
        """Whether every pool has the blocks of ``need``, and the shared one ``spare`` more."""
        if need[0] + spare > self.pools[0].num_free:
            return False
        return len(need) == 1 or all(
            count <= pool.num_free for count, pool in zip(need[1:], self.pools[1:], strict=True)
        )

    def commit(
        self,
        held: RequestTables,
        hits: Sequence[IntArray] | None,
        growths: list[Growth],
        allocation: Allocation,
    ) -> KVCacheBlocks:
        """Adopt ``hits`` and take the counted blocks, which are free."""
        if hits:
            for c, (manager, table) in enumerate(held.pairs):
                table.reserve(growths[c].length)
                manager.adopt(table, hits[c], allocation.hit_tokens)
        loaded = self._take([len(g.loaded) for g in growths]) if allocation.loads else self._no_rows
        fresh = self._take([len(g.fresh) + g.copies for g in growths])
        added: list[IntArray] = []
        for b, (c, rows) in enumerate(self.batches):
            growth, table = growths[c], held.tables[c]
            new = self.managers[c].extend(table, rows, growth, loaded[b], fresh[b], allocation.hit_tokens)
            added += [new[i] for i in range(len(new))]  # numpy's iterators are slow to end
        return KVCacheBlocks(tuple(added))

    def _take(self, counts: list[int]) -> list[IntArray]:
        """For every batch its blocks, a row per group, ``counts`` of them by manager.

        Each pool is asked once, since the order in which it gives blocks is part of the answer.
        """
        if not any(counts):
            return self._no_rows
        parts = self._no_rows.copy()
        for pool, taken, batches in self._shares:
            rows = pool.take_rows([(groups, counts[c]) for _, c, groups in batches])
            for i, (b, _, _) in enumerate(batches):
                parts[b] = rows[i]
            taken += rows
        return parts

    def settle(self, held: RequestTables, tokens_before: int, tokens_after: int) -> None:
        """Every group has the blocks for a step from ``tokens_before`` to ``tokens_after`` tokens."""
        for manager, table in held.pairs:
            manager.settle(table, tokens_before, tokens_after)

    def no_work_until(self, held: RequestTables, keyed: int, tokens_after: int) -> int:
        """The length up to which the request may grow, token by token, before any of its groups has work to do."""
        longest = self.max_model_len
        for manager, table in held.pairs:
            longest = min(longest, manager.no_work_until(table, keyed, tokens_after))
        return longest

    # ---- what the current step has written, and page copies

    def new_step_starts(self) -> None:
        """What the last step has keyed can be hit now."""
        for keys in self._keys:
            if keys.noted:
                keys.noted = []
                for manager in self.managers:
                    manager.written_from.clear()

    def pending_copies(self) -> list[tuple[int, int]]:
        """Group by group, (source, target) of the copies that have not run, oldest first."""
        if not self._has_copies():
            return []
        return [pair for c, i in self.place for pair in self.managers[c].pending_copies[i]]

    def copies_by_pool(self) -> list[list[tuple[int, int]]]:
        """`pending_copies`, a list for each pool, since pools have ids of their own."""
        found: list[list[tuple[int, int]]] = [[] for _ in self.pools]
        if self._has_copies():
            for c, i in self.place:
                found[self.pool_of[c]] += self.managers[c].pending_copies[i]
        return found

    def _has_copies(self) -> bool:
        """Whether copies are pending: groups in lockstep have equally many."""
        return any(manager.pending_copies[0] for manager in self.managers)

    def release_copies(self) -> None:
        """The pending copies have run: release both ends of each."""
        if not self._has_copies():
            return
        for p, pool in enumerate(self.pools):
            ends: list[int] = []
            for c, i in self.place:
                if self.pool_of[c] == p:
                    ends.extend(chain.from_iterable(self.managers[c].pending_copies[i]))
                    self.managers[c].pending_copies[i].clear()
            if ends:
                pool.info.request = None
                pool.release(np.array(ends, np.int32))

    # ---- freeing, dropping keys

    def _releases_for(self, request: Request, is_end: bool) -> None:
        """Tell the orders of reuse whose blocks they get."""
        for pool in self.pools:
            pool.info.request, pool.info.is_end = request, is_end

    def release(self, held: RequestTables) -> None:
        """Release every block of ``held``, each group's tail first."""
        self._releases_for(held.owner, is_end=True)
        for c, rows in self.batches:
            self.managers[c].release(held.tables[c], rows)

    def reset_keys(self) -> bool:
        """Drop every key, if no block is held; otherwise do nothing and return False."""
        if any(pool.num_free != pool.num_blocks - 1 for pool in self.pools):
            return False
        return all(pool.reset() for pool in self.pools)
