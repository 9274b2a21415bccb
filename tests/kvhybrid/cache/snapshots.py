"""All that callers can see of a cache manager, over any number of pools, and what a refused call may change."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.conformance.pool_keys import copies_of, keys_of, pool_of

APART = 1_000_000
"""Block b of pool p is page ``p * APART + b``, so that blocks of two pools are never taken for each other."""


def offset_of(manager: KVCacheManager, group: int) -> int:
    """The page of the null block of a group's pool."""
    return manager.coordinator.pools.index(pool_of(manager, group)) * APART


def page_rows(manager: KVCacheManager, request_id: str) -> list[list[int]]:
    """A request's block table in pages, 0 for null entries."""
    rows = manager.get_block_ids(request_id)
    return [np.where(row > 0, row + offset_of(manager, g), 0).tolist() for g, row in enumerate(rows)]


def page_copies(manager: KVCacheManager) -> list[tuple[int, int]]:
    """The pending copies, (source, target) in pages."""
    return [
        (offset_of(manager, g) + source, offset_of(manager, g) + target)
        for g in range(len(manager.config.groups))
        for source, target in copies_of(manager, g)
    ]


@dataclass(frozen=True)
class Snapshot:
    """Blocks are pages."""

    queue: tuple[int, ...]
    """The free queue of every pool, one after another."""
    refs: dict[int, int]
    keys: dict[int, frozenset[tuple[int, bytes]]]
    """For every keyed block its group and prefix keys."""
    serving: frozenset[tuple[int, bytes, int]]
    """Group, prefix key, and the block that a look-up finds."""
    tables: dict[str, tuple[tuple[int, ...], ...]]
    copies: tuple[tuple[int, int], ...]


def snapshot(manager: KVCacheManager) -> Snapshot:
    index, queue, refs = manager.coordinator.index, list[int](), dict[int, int]()
    keys: dict[int, frozenset[tuple[int, bytes]]] = {}
    serving: set[tuple[int, bytes, int]] = set()
    for p, pool in enumerate(manager.coordinator.pools):
        at, known = p * APART, keys_of(pool)
        queue += [at + block for block in pool.free_queue()]
        refs |= {at + b: int(pool.refs[b]) for b in np.flatnonzero(pool.refs).tolist()}
        keys |= {at + b: frozenset((g, index.key(n)) for n in numbers) for b, (g, numbers) in known.held.items()}
        serving |= {(g, index.key(n), at + b) for (g, n), b in known.found.items()}
    tables = {name: tuple(map(tuple, page_rows(manager, name))) for name in manager.coordinator.tables}
    return Snapshot(tuple(queue), refs, keys, frozenset(serving), tables, tuple(page_copies(manager)))


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
