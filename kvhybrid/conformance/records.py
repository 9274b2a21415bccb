"""Checks that the records of a cache manager (miss causes, events, residency) agree with what it does."""

from __future__ import annotations

from kvhybrid.cache.events import AllBlocksCleared, BlockRemoved, BlockStored, StoredBlock
from kvhybrid.cache.hashing import ROOT
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.stats import LookupStats
from kvhybrid.conformance.pool_keys import keys_of
from kvhybrid.conformance.violation import Violation

CHECK = "records"


class Records:
    """Replays a manager's events on empty sets, and compares its records with its pools."""

    def __init__(self, manager: KVCacheManager) -> None:
        self.manager = manager
        self.keys: list[set[bytes]] = [set() for _ in manager.config.groups]
        """Per group, the cached keys according to the events."""
        self.blocks: list[tuple[int, StoredBlock]] = []
        """Every block ever stored, with its group."""

    def check(self) -> None:
        """Check the records since the last call, of those that are switched on.

        Raises:
            Violation: A record disagrees with the cache.
        """
        if self.manager.coordinator.ledger is not None:
            self._check_causes()
        if self.manager.events is not None:
            self._check_events()
        if self.manager.residency is not None:
            self._check_residency()

    def _check_causes(self) -> None:
        for group in self.manager.stats().groups:
            for lookups in (group, group.readmitted):
                if fault := _causes(lookups):
                    raise Violation(CHECK, f"group {group.name}: {fault}")

    def _check_residency(self) -> None:
        """Check that every eviction has a lifetime and an idle time, in every pool."""
        evictions = [group.evictions for group in self.manager.stats().groups]
        for g, (measured, count) in enumerate(zip(self.manager.residency or (), evictions, strict=True)):
            if (measured.life.count, measured.idle.count) != (count, count):
                raise Violation(
                    CHECK, f"group {g} has {count} evictions, but {measured.life.count} lives are timed"
                )
            for times in (measured.life, measured.idle, measured.reuse_gap):
                if times.count and not 0 <= times.longest <= times.total:
                    raise Violation(CHECK, f"group {g}: {times} cannot be")
            if measured.idle.total > measured.life.total:
                raise Violation(CHECK, f"group {g}: blocks were idle for longer than they lived")

    def _check_events(self) -> None:
        for event in self.manager.take_events():
            if isinstance(event, BlockStored):
                self._store(event)
            elif isinstance(event, BlockRemoved):
                for key in event.keys:
                    if key not in self.keys[event.group]:
                        raise Violation(CHECK, f"an event removes a key of group {event.group} that is not stored")
                    self.keys[event.group].remove(key)
                if not event.keys:
                    raise Violation(CHECK, "an event removes no key")
            elif event == AllBlocksCleared():
                self.keys = [set() for _ in self.keys]
        if self.keys != keys_in_pools(self.manager):
            raise Violation(CHECK, "the events do not give the keys that are cached")

    def _store(self, event: BlockStored) -> None:
        size, unit = self.manager.config.block_sizes[event.group], self.manager.config.hash_unit
        if not event.blocks:
            raise Violation(CHECK, "an event stores no key")
        for block in event.blocks:
            if block.key in self.keys[event.group]:
                raise Violation(CHECK, f"an event stores a key of group {event.group} a second time")
            fits = block.start % size == 0 and block.start < block.end <= block.start + size
            if not fits or len(block.extra_keys) * unit != block.end - block.start:
                raise Violation(CHECK, f"an event says that a block holds tokens {block.start} to {block.end}")
            if (block.parent_key == ROOT) is not (block.start == 0):
                raise Violation(CHECK, f"an event gives a block at token {block.start} a wrong parent")
            self.keys[event.group].add(block.key)
            self.blocks.append((event.group, block))


def _causes(lookups: LookupStats) -> str:
    """Check that the tokens hit and those of all causes add up to the tokens asked."""
    misses = lookups.misses
    if misses is None or min(misses) < 0 or lookups.tokens_hit + misses.total != lookups.tokens_asked:
        return f"{lookups.tokens_hit} tokens hit and {misses} do not add up to {lookups.tokens_asked} asked"
    return ""


def keys_in_pools(manager: KVCacheManager) -> list[set[bytes]]:
    """Per group, the prefix keys under which a block can be found."""
    keys: list[set[bytes]] = [set() for _ in manager.config.groups]
    for pool in manager.coordinator.pools:
        for group, number in keys_of(pool).found:
            keys[group].add(manager.coordinator.index.key(number))
    return keys
