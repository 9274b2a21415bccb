"""What an event says of a block must give the block's key."""

from __future__ import annotations

from hashlib import sha256

from kvhybrid.cache.events import StoredBlock
from kvhybrid.cache.hashing import ROOT
from kvhybrid.cache.request import Request


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
