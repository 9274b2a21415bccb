"""`Traffic` over caches whose groups may live in private pools, with every record of the manager checked.

After each call the causes of misses add up to the tokens asked, the events rebuild the keys, and the meter has
timed every eviction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvhybrid.cache.blocks import ComputedBlocks, KVCacheBlocks
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.managers.pool.block_pool import BlockPool
from tests.kvhybrid.cache.invariants import Snapshot, assert_invariants, assert_only_dead_blocks_left, snapshot
from tests.kvhybrid.cache.oracle import Oracle
from tests.kvhybrid.cache.records import Replay, assert_causes_add_up, assert_evictions_are_timed
from tests.kvhybrid.cache.traffic import Scheduled, Sequence, Traffic

APART = 1_000_000
"""Block b of pool p is page ``p * APART + b``, so that blocks of two pools are never taken for each other."""


def pool_of(manager: KVCacheManager, group: int) -> BlockPool:
    coordinator = manager.coordinator
    return coordinator.managers[coordinator.place[group][0]].pool


def offset_of(manager: KVCacheManager, group: int) -> int:
    coordinator = manager.coordinator
    return coordinator.groups.pool_of[coordinator.place[group][0]] * APART


def page_rows(manager: KVCacheManager, request_id: str) -> list[list[int]]:
    """A request's block table in pages, 0 where it has none."""
    rows = manager.get_block_ids(request_id)
    return [np.where(row > 0, row + offset_of(manager, g), 0).tolist() for g, row in enumerate(rows)]


def page_copies(manager: KVCacheManager) -> list[tuple[int, int]]:
    """The pending copies, (source, target) in pages."""
    pairs: list[tuple[int, int]] = []
    for g, (c, i) in enumerate(manager.coordinator.place):
        at = offset_of(manager, g)
        pairs += [
            (at + source, at + target) for source, target in manager.coordinator.managers[c].pending_copies[i]
        ]
    return pairs


def snapshot_of_pools(manager: KVCacheManager) -> Snapshot:
    """As `snapshot`, over all pools, blocks named by page."""
    index, whole = manager.coordinator.index, Snapshot((), {}, {}, frozenset(), {}, ())
    for p, pool in enumerate(manager.coordinator.pools):
        at = p * APART
        whole = Snapshot(
            queue=(*whole.queue, *(at + block for block in pool.free_queue())),
            refs=whole.refs | {at + b: int(pool.refs[b]) for b in np.flatnonzero(pool.refs).tolist()},
            keys=whole.keys
            | {
                at + b: frozenset((int(pool.group_of[b]), index.key(n)) for n in pool.keys.of(b))
                for b in np.flatnonzero(pool.keys.number_of).tolist()
            },
            serving=whole.serving
            | {
                (g, index.key(n), at + int(pool.keys.index[g, n]))
                for g, n in np.argwhere(pool.keys.index).tolist()
            },
            tables={},
            copies=(),
        )
    return Snapshot(
        whole.queue,
        whole.refs,
        whole.keys,
        whole.serving,
        tables={name: tuple(map(tuple, page_rows(manager, name))) for name in manager.coordinator.tables},
        copies=tuple(page_copies(manager)),
    )


@dataclass(frozen=True)
class PooledOracle(Oracle):
    """As `Oracle`; groups go in lockstep where they have one spec and one pool."""

    def alike(self, g: int) -> tuple[int, ...]:
        return next(members for members in self.config.lockstep() if g in members)

    def margin(self, g: int) -> int:
        spec = self.config.groups[g].spec
        if spec.state or not any(self.config.groups[h].draft for h in self.alike(g)):
            return 0
        return self.config.hash_unit if self.sub_block and spec.sub_block else self.config.block_size_of(spec)

    def covers(self, g: int, j: int, end: int, p: int, limit: int) -> bool:
        spec = self.config.groups[g].spec
        size, unit = self.config.block_size_of(spec), self.config.hash_unit
        whole, bound = (j + 1) * size, limit + self.margin(g)
        keys = [whole] if whole <= bound or not self.sub_block else []
        if self.sub_block and spec.sub_block:
            keys.extend(range(-(-end // unit) * unit, min(whole - 1, bound) + 1, unit))
        return any(all(self.is_cached(h, key) for h in self.alike(g)) for key in keys)


class PooledTraffic(Traffic):
    """Every call of `Traffic`, over any number of pools."""

    def __init__(self, manager: KVCacheManager) -> None:
        super().__init__(manager)
        self.replay = Replay(manager)

    def call(self, kind: str, a: int, b: int) -> None:
        super().call(kind, a, b)
        self.check_records()

    def check_records(self) -> None:
        self.replay.catch_up()
        assert_causes_add_up(self.manager)
        assert_evictions_are_timed(self.manager)

    def wind_up(self) -> None:
        """When all requests have gone, all blocks are free, and a reset leaves no key."""
        self.call("end_step", 0, 0)
        for _ in range(len(self.running) + len(self.waiting) + len(self.loading)):
            self.call("finish", 0, 0)
        for pool in self.manager.coordinator.pools:
            assert pool.num_free == pool.num_blocks - 1, "blocks were not given back"
        assert self.manager.usage == 0.0
        assert self.manager.reset_prefix_cache()
        assert_invariants(self.manager)
        self.check_records()
        assert not any(self.replay.keys)

    # ---- calls

    def do_evict(self, a: int, b: int) -> None:
        super().do_evict(a, b)
        for pool in self.manager.coordinator.pools[1:]:
            pool.evict({a % pool.num_blocks})

    def do_reset(self, a: int, b: int) -> None:
        if b % 4:
            return
        before = snapshot_of_pools(self.manager)
        done = self.manager.reset_prefix_cache()
        after = snapshot_of_pools(self.manager)
        assert done is (not before.refs)
        assert after.queue == before.queue
        assert after.keys == ({} if done else before.keys)

    # ---- look-up and allocation

    def _look_up(self, sequence: Sequence) -> ComputedBlocks:
        found = super()._look_up(sequence)
        hit, request = found.blocks, sequence.request
        if request.skip_reading_prefix_cache or self.manager.coordinator.ledger is None:
            assert hit.causes is None
            return found
        assert hit.causes is not None
        for group, own, causes in zip(self.manager.config.groups, hit.own_tokens, hit.causes, strict=True):
            assert min(causes) >= 0, f"{group.spec.kind}: {causes}"
            assert found.num_tokens + causes.total == request.num_tokens, f"{group.spec.kind}: {causes}"
            assert own >= found.num_tokens or not group.spec.cacheable
            self.seen.update(name for name, tokens in causes.by_name().items() if tokens)
        return found

    def _assert_hit_is_the_longest(self, request: Request, found: ComputedBlocks) -> None:
        manager, unit = self.manager, self.manager.config.hash_unit
        numbers = manager.coordinator.numbers(request)

        def is_cached(group: int, tokens: int) -> int:
            at = tokens // unit
            if tokens % unit or not 0 < at <= len(numbers):
                return 0
            return int(pool_of(manager, group).keys.index[group, numbers[at - 1]])

        oracle = PooledOracle(manager.config, is_cached, manager.coordinator.sub_block_hits)
        assert found.num_tokens == oracle.joint_hit(request.num_tokens - 1)
        for g in oracle.cacheable():
            row = found.blocks.ids[g].tolist()
            size = manager.config.block_sizes[g]
            assert len(row) == -(-found.num_tokens // size)
            assert row[: found.num_tokens // size] == oracle.blocks(g, found.num_tokens)

    def _allocate(
        self,
        sequence: Sequence,
        found: ComputedBlocks | None,
        new: int,
        external: int,
        delayed: bool,
        *,
        lookahead: int,
        a: int,
        b: int,
    ) -> None:
        manager, request = self.manager, sequence.request
        hit = found.num_tokens if found else 0
        local = request.num_computed_tokens + hit
        if not (new or external or hit):
            return
        waiting = request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        before, shared_before = snapshot_of_pools(manager), snapshot(manager)
        blocks = self._slots(
            request,
            new,
            hit,
            found.blocks if found else None,
            num_lookahead_tokens=lookahead,
            num_external_computed_tokens=external,
            delay_cache_blocks=delayed,
            num_encoder_tokens=request.num_encoder_tokens if waiting else 0,
            full_sequence_must_fit=waiting and a % 2 == 0,
            reserved_blocks=a % 3 if delayed else 0,
            has_scheduled_reqs=bool(self.running),
        )
        total = local + external
        settled = max(0, total - request.num_in_flight_tokens)
        if blocks is None:
            self.seen.add("refused waiting" if waiting else "refused running")
            assert_only_dead_blocks_left(manager, before, snapshot_of_pools(manager), request.request_id, settled)
            return
        self.seen.update(
            what
            for what, happened in {
                "hit": hit,
                "hit inside a block": hit % max(manager.config.block_sizes),
                "delayed load" if delayed else "load": external,
            }.items()
            if happened
        )
        self._assert_backed(request, total, total + new, lookahead, settled)
        self._assert_watermark(shared_before, waiting)
        self._granted(sequence, local, total, new, delayed, waiting)

    def _slots(self, *args: object, **options: object) -> KVCacheBlocks | None:
        return self.manager.allocate_slots(*args, **options)  # type: ignore[arg-type]

    def _granted(self, sequence: Sequence, local: int, total: int, new: int, delayed: bool, waiting: bool) -> None:
        request = sequence.request
        request.num_computed_tokens = total + new
        if waiting:
            self.waiting.remove(sequence)
            (self.loading if delayed else self.running).append(sequence)
        request.status = RequestStatus.LOADING if delayed else RequestStatus.RUNNING
        if delayed:
            sequence.loads_until = local
        self.step.append(Scheduled(sequence, total if delayed else local, total, total + new))

    # ---- the model

    def _execute(self) -> list[Scheduled]:
        copies = page_copies(self.manager)
        assert [(s % APART, t % APART) for s, t in copies] == self.manager.take_copies()
        for source, target in copies:
            self.seen.add("copy")
            self.pages[target] = dict(self.pages.get(source, {}))
        self.manager.release_copies()
        return super()._execute()

    def _groups(self, request: Request) -> list[tuple[object, int, list[int]]]:
        config, rows = self.manager.config, page_rows(self.manager, request.request_id)
        return [
            (group.spec, size, row)
            for group, size, row in zip(config.groups, config.block_sizes, rows, strict=True)
            if group.spec.source == "decoder"
        ]
