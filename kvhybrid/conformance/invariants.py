"""What must hold of a cache manager after every call, whatever was called."""

from __future__ import annotations

from collections import Counter

import numpy as np

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request
from kvhybrid.conformance.violation import Violation

CHECK = "invariants"


def check_invariants(manager: KVCacheManager) -> None:
    """Every reference has a holder, every block one place, every key one meaning."""
    for fault in (_references(manager), _free_queue(manager), _keys(manager), _tables(manager)):
        if fault:
            raise Violation(CHECK, fault)


def _references(manager: KVCacheManager) -> str:
    pool, held = manager.block_pool, Counter[int]()
    for request_id in manager.coordinator.tables:
        for row in manager.get_block_ids(request_id):
            held.update(row[row > 0].tolist())
    for pair in manager.take_copies():
        held.update(pair)
    counted = {block: int(pool.refs[block]) for block in np.flatnonzero(pool.refs).tolist()}
    for block in sorted(counted.keys() | held.keys()):
        if counted.get(block, 0) != held[block]:
            return (
                f"block {block} is counted {counted.get(block, 0)} times, but stands {held[block]} times in tables"
            )
    return ""


def _free_queue(manager: KVCacheManager) -> str:
    pool = manager.block_pool
    queue, held = pool.free_queue(), set(np.flatnonzero(pool.refs).tolist())
    both = held.intersection(queue)
    if both:
        return f"block {min(both)} is both held and free"
    if len(queue) != len(set(queue)) or len(queue) != pool.num_free:
        return f"the free queue {queue} is counted as {pool.num_free} blocks"
    lost = set(range(1, pool.num_blocks)) - held - set(queue)
    return f"block {min(lost)} is neither held nor free" if lost else ""


def _keys(manager: KVCacheManager) -> str:
    pool = manager.block_pool
    if pool.keys.of(0):
        return "the null block has a key"
    for group, number in zip(*pool.keys.index.nonzero(), strict=True):
        block = int(pool.keys.index[group, number])
        if int(number) not in pool.keys.of(block) or int(pool.group_of[block]) != group:
            return f"group {group} finds block {block} under a key that the block does not have"
    for block in np.flatnonzero(pool.keys.number_of).tolist():
        for number in pool.keys.of(block):
            if not pool.keys.has(int(pool.group_of[block]), block, number):
                return f"block {block} has a key under which it cannot be found"
    return ""


def _tables(manager: KVCacheManager) -> str:
    for request_id in manager.coordinator.tables:
        for g, row in enumerate(manager.get_block_ids(request_id)):
            real = row[row > 0].tolist()
            if len(real) != len(set(real)):
                return f"the table of request {request_id!r} in group {g} holds a block twice"
    return ""


def check_backed(manager: KVCacheManager, request: Request, start: int, end: int) -> None:
    """What a step from ``start`` to ``end`` tokens reads and writes has blocks."""
    rows = manager.get_block_ids(request.request_id)
    for g, (group, size) in enumerate(zip(manager.config.groups, manager.config.block_sizes, strict=True)):
        spec = group.spec
        if spec.source == "encoder":
            continue
        needed = {j for blocks in spec.live_blocks(start, size) for j in blocks}
        if spec.state:
            needed.update(j for blocks in spec.live_blocks(end, size) for j in blocks)
        else:
            needed.update(range(start // size, -(-end // size)))
        for j in sorted(needed):
            if j >= len(rows[g]) or not rows[g][j]:
                raise Violation(
                    CHECK,
                    f"request {request.request_id!r} has no block at entry {j} of group {g} ({spec.kind}), which "
                    f"the step from {start} to {end} tokens reads or writes",
                )
