"""What must hold of a cache manager after every call, whatever was called."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.managers.pool.block_pool import BlockPool


def assert_invariants(manager: KVCacheManager) -> None:
    """Every reference has a holder, every block has one place, every key has one meaning."""
    for pool in manager.coordinator.pools:
        _assert_references(manager, pool)
        _assert_free_queue(pool)
        _assert_keys(manager, pool)
    _assert_tables(manager)


def _groups_of(manager: KVCacheManager, pool: BlockPool) -> list[int]:
    coordinator = manager.coordinator
    return [g for g, (c, _) in enumerate(coordinator.place) if coordinator.managers[c].pool is pool]


def _holders(manager: KVCacheManager, pool: BlockPool) -> Counter[int]:
    """How often each block of ``pool`` occurs in a table or as an end of a pending copy."""
    held: Counter[int] = Counter()
    coordinator = manager.coordinator
    for g in _groups_of(manager, pool):
        c, i = coordinator.place[g]
        for request_id in coordinator.tables:
            row = manager.get_block_ids(request_id)[g]
            held.update(row[row > 0].tolist())
        for pair in coordinator.managers[c].pending_copies[i]:
            held.update(pair)
    return held


def _assert_references(manager: KVCacheManager, pool: BlockPool) -> None:
    counted = {block: int(pool.refs[block]) for block in np.flatnonzero(pool.refs).tolist()}
    assert counted == dict(_holders(manager, pool)), "counts differ from the tables and copies that hold blocks"
    assert pool.refs[0] == 0, "the null block is counted"


def _assert_free_queue(pool: BlockPool) -> None:
    queue = pool.free_queue()
    held = set(np.flatnonzero(pool.refs).tolist())
    assert len(queue) == len(set(queue)) == pool.num_free
    assert held.isdisjoint(queue), "a block is both held and free"
    assert held | set(queue) | {0} == set(range(pool.num_blocks)), "a block is lost"
    assert 0.0 <= pool.usage <= 1.0


def _assert_keys(manager: KVCacheManager, pool: BlockPool) -> None:
    index, groups = manager.coordinator.index, _groups_of(manager, pool)
    assert not pool.keys.of(0), "the null block is keyed"
    assert not pool.keys.index[:, 0].any(), "number 0 stands for no prefix"
    for group, number in zip(*pool.keys.index.nonzero(), strict=True):
        block = int(pool.keys.index[group, number])
        assert int(number) in pool.keys.of(block), "the index leads to a block that lost this key"
        assert int(pool.group_of[block]) == group
        assert group in groups, "a key of a group that has its blocks elsewhere"
        assert number < len(index), "a key without a prefix"
        assert index.key(int(number)), "a key whose prefix was recycled"
    for block in range(1, pool.num_blocks):
        numbers = pool.keys.of(block)
        assert len(numbers) == len(set(numbers))
        assert bool(numbers) == bool(pool.keys.number_of[block])
        for number in numbers:
            assert pool.keys.has(int(pool.group_of[block]), block, number), "a keyed block cannot be reached"
            assert index.units(number) <= index.units(numbers[0]), "the first key is not the longest"
    if not manager.enable_caching:
        assert not pool.keys.numbers_in_use().any()


def _assert_tables(manager: KVCacheManager) -> None:
    sizes = manager.config.block_sizes
    for request_id in manager.coordinator.tables:
        rows = manager.get_block_ids(request_id)
        for row in rows:
            real = row[row > 0].tolist()
            assert len(real) == len(set(real)), "a table holds a block twice"
        for (c, _), row, size in zip(manager.coordinator.place, rows, sizes, strict=True):
            if manager.coordinator.managers[c].spec.source == "decoder":
                assert len(row) <= -(-manager.max_model_len // size), "more slots than the longest request has"


@dataclass(frozen=True)
class Snapshot:
    """All that callers can see of a cache manager."""

    queue: tuple[int, ...]
    refs: dict[int, int]
    keys: dict[int, frozenset[tuple[int, bytes]]]
    """For every keyed block its group and prefix keys."""
    serving: frozenset[tuple[int, bytes, int]]
    tables: dict[str, tuple[tuple[int, ...], ...]]
    copies: tuple[tuple[int, int], ...]


def snapshot(manager: KVCacheManager) -> Snapshot:
    pool, index = manager.block_pool, manager.coordinator.index
    found = zip(*pool.keys.index.nonzero(), strict=True)
    return Snapshot(
        queue=tuple(pool.free_queue()),
        refs={b: int(pool.refs[b]) for b in np.flatnonzero(pool.refs).tolist()},
        keys={
            b: frozenset((int(pool.group_of[b]), index.key(n)) for n in pool.keys.of(b))
            for b in np.flatnonzero(pool.keys.number_of).tolist()
        },
        serving=frozenset((int(g), index.key(int(n)), int(pool.keys.index[g, n])) for g, n in found),
        tables={
            name: tuple(tuple(row.tolist()) for row in manager.get_block_ids(name))
            for name in manager.coordinator.tables
        },
        copies=tuple(manager.take_copies()),
    )


def assert_only_dead_blocks_left(
    manager: KVCacheManager, before: Snapshot, after: Snapshot, request_id: str, settled: int
) -> None:
    """A refused call may have given back what ``request_id`` no longer reads at ``settled`` tokens: no more."""
    assert after.keys == before.keys
    assert after.serving == before.serving
    assert after.copies == before.copies
    assert after.tables.keys() == before.tables.keys()
    dropped: Counter[int] = Counter()
    for name, rows in before.tables.items():
        if name != request_id:
            assert after.tables[name] == rows
            continue
        for group, row, left, size in zip(
            manager.config.groups, rows, after.tables[name], manager.config.block_sizes, strict=True
        ):
            live = {j for part in group.spec.live_blocks(settled, size) for j in part}
            assert len(row) == len(left)
            for j, (was, now) in enumerate(zip(row, left, strict=True)):
                if was != now:
                    assert now == 0, "a refused call put another block into a table"
                    assert j not in live, "a refused call dropped a block that is still read"
                    assert (j + 1) * size <= settled, "a refused call dropped a block that is still written"
                    dropped[was] += 1
    refs = Counter(before.refs)
    refs.subtract(dropped)
    assert after.refs == {block: count for block, count in refs.items() if count}
    gone = {block for block in dropped if block not in after.refs}
    assert [b for b in after.queue if b not in gone] == list(before.queue)
    assert gone <= set(after.queue)
