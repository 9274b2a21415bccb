"""Invariants of a cache manager that hold after every call."""

from __future__ import annotations

from collections import Counter

import numpy as np

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request
from kvhybrid.conformance.pool_keys import copies_of, keys_of, pool_of
from kvhybrid.conformance.violation import Violation
from kvhybrid.managers.pool.block_pool import BlockPool

CHECK = "invariants"


def check_invariants(manager: KVCacheManager) -> None:
    """Check that every reference has a holder, every block is in one place, and every key has one meaning.

    Raises:
        Violation: An invariant does not hold.
    """
    for pool in manager.coordinator.pools:
        groups = [g for g in range(len(manager.config.groups)) if pool_of(manager, g) is pool]
        for fault in (
            _references(manager, pool, groups),
            _free_queue(pool),
            _keys(manager, pool, groups),
            _counts(manager, pool, groups),
        ):
            if fault:
                raise Violation(CHECK, fault)
    if fault := _tables(manager):
        raise Violation(CHECK, fault)


def check_empty(manager: KVCacheManager) -> None:
    """Check, after all requests have ended and copies are released, that all blocks are free and a reset removes
    all keys.

    Raises:
        Violation: A block is held, or a key remains.
    """
    for pool in manager.coordinator.pools:
        if pool.num_free != pool.num_blocks - 1 or pool.usage:
            raise Violation(
                CHECK, f"no request is left, but {pool.num_free} of {pool.num_blocks - 1} blocks are free"
            )
    if not manager.reset_prefix_cache():
        raise Violation(CHECK, "no request is left, but a reset is refused")
    for pool in manager.coordinator.pools:
        if keys_of(pool).found or keys_of(pool).held:
            raise Violation(CHECK, "a reset left a key")
    check_invariants(manager)


def _references(manager: KVCacheManager, pool: BlockPool, groups: list[int]) -> str:
    held = Counter[int]()
    for g in groups:
        for request_id in manager.coordinator.tables:
            row = manager.get_block_ids(request_id)[g]
            held.update(row[row > 0].tolist())
        for pair in copies_of(manager, g):
            held.update(pair)
    counted = {block: int(pool.refs[block]) for block in np.flatnonzero(pool.refs).tolist()}
    for block in sorted(counted.keys() | held.keys()):
        if counted.get(block, 0) != held[block]:
            return (
                f"block {block} is counted {counted.get(block, 0)} times, but occurs {held[block]} times in tables"
                " and pending copies"
            )
    return ""


def _free_queue(pool: BlockPool) -> str:
    queue, held = pool.free_queue(), set(np.flatnonzero(pool.refs).tolist())
    both = held.intersection(queue)
    if both:
        return f"block {min(both)} is both held and free"
    if len(queue) != len(set(queue)) or len(queue) != pool.num_free:
        return f"the free queue {queue} is counted as {pool.num_free} blocks"
    usable = set(range(1, pool.num_blocks))
    if usable != held | set(queue):
        odd = min(usable ^ (held | set(queue)))
        return f"block {odd} is {'neither held nor free' if odd in usable else 'no block of the pool'}"
    return "" if 0.0 <= pool.usage <= 1.0 else f"a usage of {pool.usage}"


def _keys(manager: KVCacheManager, pool: BlockPool, groups: list[int]) -> str:
    index, keys = manager.coordinator.index, keys_of(pool)
    if 0 in keys.held:
        return "the null block has a key"
    if keys.held and not manager.enable_caching:
        return f"block {min(keys.held)} has a key, and caching is off"
    for (group, number), block in keys.found.items():
        if (group, number) not in ((keys.held[block][0], n) for n in keys.held.get(block, (0, ()))[1]):
            return f"group {group} finds block {block} under a key that the block does not have"
        if group not in groups:
            return f"group {group} finds block {block} in a pool that is not its own"
        if not 0 < number < len(index) or not index.key(number):
            return f"group {group} finds block {block} under number {number}, which has no prefix"
    for block, (group, numbers) in keys.held.items():
        if len(numbers) != len(set(numbers)):
            return f"block {block} has a key twice"
        for number in numbers:
            if block not in keys.blocks[group, number] or (group, number) not in keys.found:
                return f"block {block} has a key under which it cannot be found"
            if index.units(number) > index.units(numbers[0]):
                return f"block {block} has a longer key than its first"
    return ""


def _counts(manager: KVCacheManager, pool: BlockPool, groups: list[int]) -> str:
    """Compare the statistics of each group's blocks with the pool."""
    keyed, stats = Counter(group for group, _ in keys_of(pool).held.values()), manager.stats()
    for g in groups:
        told = stats.groups[g].blocks_cached
        if told != keyed[g]:
            return f"group {g} reports {told} cached blocks, but {keyed[g]} have a key"
    return ""


def _tables(manager: KVCacheManager) -> str:
    for request_id in manager.coordinator.tables:
        rows = manager.get_block_ids(request_id)
        for g, (group, size, row) in enumerate(
            zip(manager.config.groups, manager.config.block_sizes, rows, strict=True)
        ):
            real = row[row > 0].tolist()
            if len(real) != len(set(real)):
                return f"the table of request {request_id!r} in group {g} holds a block twice"
            if group.spec.source == "decoder" and len(row) > -(-manager.max_model_len // size):
                return (
                    f"the table of request {request_id!r} in group {g} has more entries than the longest request"
                )
    return ""


def check_backed(manager: KVCacheManager, request: Request, start: int, end: int, lookahead: int = 0) -> None:
    """Check that a granted step from ``start`` to ``end`` tokens has blocks for everything that it reads and
    writes, including slots for look-ahead tokens, and no dead blocks.

    Raises:
        Violation: A block is missing, or a dead block is kept.
    """
    rows, name = manager.get_block_ids(request.request_id), f"request {request.request_id!r}"
    slots = max(end, min(end + lookahead, manager.max_model_len))
    settled = max(0, start - request.num_in_flight_tokens)
    for g, (group, size) in enumerate(zip(manager.config.groups, manager.config.block_sizes, strict=True)):
        spec, row, where = group.spec, rows[g], f"group {g} ({group.spec.kind})"
        if spec.source == "encoder":
            if len(row) != -(-request.num_encoder_tokens // size) or not (row > 0).all():
                raise Violation(
                    CHECK, f"{name} has {row.tolist()} in {where} for {request.num_encoder_tokens} tokens"
                )
            continue
        needed = {j for blocks in spec.live_blocks(start, size) for j in blocks}
        if spec.state:
            needed.update(j for blocks in spec.live_blocks(end, size) for j in blocks)
        elif start < slots:
            needed.update(range(start // size, -(-slots // size)))
        for j in sorted(needed):
            if j >= len(row) or not row[j]:
                raise Violation(
                    CHECK,
                    f"{name} has no block at entry {j} of {where}, which the step from {start} to {end} tokens "
                    "reads or writes",
                )
        live = {j for blocks in spec.live_blocks(settled, size) for j in blocks}
        dead = [j for j in range(min(settled // size, len(row))) if row[j] and j not in live]
        if dead and not spec.state:
            raise Violation(CHECK, f"{name} keeps entry {dead[0]} of {where}, which is dead at {settled} tokens")
