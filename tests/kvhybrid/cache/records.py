"""What the cache manager records must agree with what it does: miss causes, events, residency."""

from __future__ import annotations

from hashlib import sha256

from kvhybrid.cache.events import AllBlocksCleared, BlockRemoved, BlockStored, StoredBlock
from kvhybrid.cache.hashing import ROOT
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request
from kvhybrid.conformance.pool_keys import keys_of


def assert_causes_add_up(manager: KVCacheManager) -> None:
    """In every group, the tokens hit and those of each cause are the tokens asked."""
    if manager.coordinator.ledger is None:
        return
    for group in manager.stats().groups:
        assert group.misses is not None
        assert min(group.misses) >= 0, f"{group.name}: {group.misses}"
        assert group.tokens_hit + group.misses.total == group.tokens_asked, f"{group.name}: {group.misses}"


def assert_evictions_are_timed(manager: KVCacheManager) -> None:
    """There is a life and an idle time for every eviction, in every pool."""
    if manager.residency is None:
        return
    evictions = [group.evictions for group in manager.stats().groups]
    for measured, count in zip(manager.residency, evictions, strict=True):
        assert (measured.life.count, measured.idle.count) == (count, count)
        for measure in (measured.life, measured.idle, measured.reuse_gap):
            assert 0 <= measure.longest <= measure.total or not measure.count
        assert measured.idle.total <= measured.life.total


def keys_in_pools(manager: KVCacheManager) -> list[set[bytes]]:
    """Per group, the prefix keys under which a block can be found."""
    keys: list[set[bytes]] = [set() for _ in manager.config.groups]
    for pool in manager.coordinator.pools:
        for group, number in keys_of(pool).found:
            keys[group].add(manager.coordinator.index.key(number))
    return keys


class Replay:
    """Plays a manager's events over empty sets and compares these with the pools."""

    def __init__(self, manager: KVCacheManager) -> None:
        self.manager = manager
        self.keys: list[set[bytes]] = [set() for _ in manager.config.groups]
        self.blocks: list[tuple[int, StoredBlock]] = []
        """Every block ever stored, with its group."""

    def catch_up(self) -> None:
        if self.manager.events is None:
            return
        for event in self.manager.take_events():
            if isinstance(event, BlockStored):
                self._store(event)
            elif isinstance(event, BlockRemoved):
                assert event.keys
                for key in event.keys:
                    assert key in self.keys[event.group], "a key is removed that was not stored"
                    self.keys[event.group].remove(key)
            else:
                assert event == AllBlocksCleared()
                self.keys = [set() for _ in self.keys]
        assert self.keys == keys_in_pools(self.manager)

    def _store(self, event: BlockStored) -> None:
        size, unit = self.manager.config.block_sizes[event.group], self.manager.config.hash_unit
        assert event.blocks
        for block in event.blocks:
            assert block.key not in self.keys[event.group], "a key is stored twice"
            assert block.start % size == 0
            assert block.start < block.end <= block.start + size
            assert len(block.extra_keys) * unit == block.end - block.start
            assert (block.parent_key == ROOT) is (block.start == 0)
            self.keys[event.group].add(block.key)
            self.blocks.append((event.group, block))


def rehash(parent: bytes, tokens: list[int], extra_keys: tuple[bytes, ...], unit: int) -> bytes:
    """The prefix key at the end of ``tokens``, from what an event says: one SHA-256 per unit."""
    assert len(tokens) == unit * len(extra_keys)
    for at, extra in enumerate(extra_keys):
        ids = tokens[at * unit : (at + 1) * unit]
        width = 4 if all(0 <= token < 2**32 for token in ids) else 8
        raw = b"".join(token.to_bytes(width, "little", signed=width == 8) for token in ids)
        parent = sha256(raw + parent + extra + bytes([width]) + unit.to_bytes(8, "little")).digest()
    return parent


def assert_event_is_true(block: StoredBlock, request: Request, unit: int) -> None:
    """Tokens, parent and extra keys give the event's key."""
    tokens = request.token_ids[block.start : block.end]
    assert rehash(block.parent_key, tokens, block.extra_keys, unit) == block.key
    assert block.key == request.block_hashes[block.end // unit - 1]
    parent = request.block_hashes[block.start // unit - 1] if block.start else ROOT
    assert block.parent_key == parent
