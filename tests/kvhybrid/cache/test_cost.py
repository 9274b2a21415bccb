"""What the cache manager's calls cost, counted and not timed: executed bytecode, entries looked at, objects kept.

The counts are of the sources on Python 3.11 with the native kernel; the limits leave a quarter of room for other
versions. A change that needs more shows up here before any benchmark runs.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

import pytest

from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.managers.kernel import is_native
from kvhybrid.managers.prefix.key_chain import KeyChain
from kvhybrid.specs import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from tests.counting import counting

pytestmark = pytest.mark.skipif(not is_native, reason="the counts are those of the native kernel")

BLOCK = 16
FULL = FullAttentionSpec(block_size=BLOCK)
WINDOW = SlidingWindowSpec(block_size=BLOCK, window=1024)
STATE = MambaSpec(block_size=BLOCK)
CHUNK = ChunkedLocalAttentionSpec(block_size=BLOCK, chunk=8192)
MODELS: dict[str, tuple[KVCacheSpec, ...]] = {
    "llama": (FULL,),
    "gemma3": (FULL, *(WINDOW,) * 6),
    "jamba": (FULL, *(STATE,) * 7),
    "llama4": (FULL, *(CHUNK,) * 3),
}


class KeyedRequest(Request):
    """Has keys and a number of tokens, and no tokens."""

    num_tokens: int = 0

    def __init__(self, request_id: str, num_tokens: int, keys: Sequence[bytes]) -> None:
        super().__init__(request_id, (0,))
        self.token_ids.clear()
        self.num_prompt_tokens = self.num_tokens = num_tokens
        self.hash_unit = BLOCK
        self.block_hashes = KeyChain(keys)


def manager_of(specs: Sequence[KVCacheSpec], num_blocks: int, **options: Any) -> KVCacheManager:
    groups = tuple(KVCacheGroup(f"{spec.kind}{i}", spec) for i, spec in enumerate(specs))
    return KVCacheManager(KVCacheConfig(groups, num_blocks), max_model_len=1 << 20, **options)


def keys_of(name: str, count: int) -> list[bytes]:
    return [sha256(f"{name}:{j}".encode()).digest() for j in range(count)]


def admit(manager: KVCacheManager, request: Request) -> int:
    """Look ``request`` up and allocate all of it; the tokens that it hit."""
    manager.new_step_starts()
    blocks, hit, _ = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, request.num_tokens - hit, hit, blocks) is not None
    request.num_computed_tokens, request.status = request.num_tokens, RequestStatus.RUNNING
    return hit


def decode(manager: KVCacheManager, request: KeyedRequest, more_keys: Iterator[bytes]) -> None:
    """One token more."""
    manager.new_step_starts()
    request.num_tokens += 1
    if request.num_tokens % BLOCK == 0:
        request.block_hashes.append(next(more_keys))
    assert manager.allocate_slots(request, 1) is not None
    request.num_computed_tokens += 1


def traffic(first: int, count: int) -> list[tuple[KeyedRequest, Iterator[bytes]]]:
    """Prompts of 200 to 1,800 blocks, a third of each shared by every fourth, and the keys of their output."""
    made = []
    for i in range(first, first + count):
        blocks = 200 + i * 617 % 1600
        keys = keys_of(f"shared{i % 4}", blocks // 3) + keys_of(f"own{i}", blocks)
        made.append((KeyedRequest(f"r{i}", blocks * BLOCK + 5, keys[:blocks]), iter(keys[blocks:])))
    return made


def serve(manager: KVCacheManager, requests: Sequence[tuple[KeyedRequest, Iterator[bytes]]]) -> None:
    """One after another, 16 decode steps each; the last 8 stay alive."""
    live: deque[Request] = deque()
    for request, more_keys in requests:
        admit(manager, request)
        for _ in range(16):
            decode(manager, request, more_keys)
        manager.take_events()
        live.append(request)
        if len(live) > 8:
            manager.free(live.popleft())
    for request in live:
        manager.free(request)


@pytest.mark.parametrize(
    ("model", "watched", "measured"),
    [
        ("llama", False, 8821),
        ("gemma3", False, 14512),
        ("jamba", False, 13391),
        ("llama4", False, 13956),
        ("llama", True, 10936),
        ("gemma3", True, 20926),
        ("jamba", True, 17993),
        ("llama4", True, 18479),
    ],
)
def test_a_request_takes_so_much_bytecode_however_long_its_prompt(
    model: str, watched: bool, measured: int
) -> None:
    """With evictions, hits on shared prefixes and 16 decode steps; ``watched`` has events and causes."""
    num_blocks = 12_000 if model == "jamba" else 12_000 * len(MODELS[model])
    manager = manager_of(MODELS[model], num_blocks, track_misses=watched, record_events=watched)
    serve(manager, traffic(0, 16))
    requests = traffic(16, 12)
    with counting() as count:
        serve(manager, requests)
    assert manager.stats().groups[0].evictions, "the pool is short enough"
    assert count.opcodes / len(requests) < 1.25 * measured


# ---- one long prompt


def long_prompt(specs: Sequence[KVCacheSpec], blocks: int) -> tuple[dict[str, int], int]:
    """Bytecode of every call of its life, and entries looked at by the hit and by the miss."""
    manager = manager_of(specs, (len(specs) * 2 + 1) * blocks)
    keys = keys_of("long", blocks)
    first, again = KeyedRequest("first", blocks * BLOCK, keys), KeyedRequest("again", blocks * BLOCK + 1, keys)
    costs: dict[str, int] = {}
    with counting() as count:
        admit(manager, first)
    costs["admit"] = count.opcodes
    lost = [int(b) for row in manager.get_block_ids("first")[1:] for b in row]
    with counting() as count:
        manager.free(first)
    costs["free"] = count.opcodes
    before = manager.block_pool.arrays.probes
    with counting() as count:
        found = manager.get_computed_blocks(again).num_tokens
    costs["hit"] = count.opcodes
    assert found == blocks * BLOCK
    manager.evict_blocks(lost)
    missing = KeyedRequest("missing", blocks * BLOCK + 1, keys)
    with counting() as count:
        manager.get_computed_blocks(missing)
    costs["miss"] = count.opcodes
    return costs, manager.block_pool.arrays.probes - before


@pytest.mark.parametrize("model", MODELS)
def test_no_call_takes_bytecode_for_every_block(model: str) -> None:
    short, _ = long_prompt(MODELS[model], 1024)
    long, probes = long_prompt(MODELS[model], 8192)
    for call, cost in long.items():
        assert cost < 1.1 * short[call] + 200, call
    assert probes <= 2 * 8192 * len({*MODELS[model]}), "an entry is looked at once by the hit and once by the miss"


def test_hashing_takes_no_bytecode_for_every_block() -> None:
    manager = manager_of((FULL,), 10)
    tokens = list(range(131_072))
    with counting() as count:
        request = Request("r", tokens, hasher=manager.hasher)
    assert len(request.block_hashes) == 8192
    assert count.opcodes < 1000


def test_an_admission_keeps_no_object_for_every_block() -> None:
    manager = manager_of(MODELS["gemma3"], 80_000)
    request = KeyedRequest("r", 8192 * BLOCK, keys_of("r", 8192))
    before = sys.getallocatedblocks()
    admit(manager, request)
    assert sys.getallocatedblocks() - before < 500


def test_an_admission_takes_no_reference_to_a_key() -> None:
    """Which would touch the memory of every one: the prefix index refers to the request's whole chain."""
    manager = manager_of(MODELS["gemma3"], 80_000)
    keys = keys_of("r", 8192)
    request = KeyedRequest("r", 8192 * BLOCK, keys)
    before = [sys.getrefcount(key) for key in keys]
    admit(manager, request)
    more = [now - then for now, then in zip((sys.getrefcount(key) for key in keys), before, strict=True)]
    assert sum(more) <= 1, "that of the run's first key, under which it is found"


# ---- decode steps


@pytest.mark.parametrize(("model", "measured"), [("llama", 3944), ("gemma3", 5868), ("jamba", 6075)])
def test_sixteen_decode_steps_take_so_much_bytecode(model: str, measured: int) -> None:
    manager = manager_of(MODELS[model], 10_000)
    keys = keys_of("r", 200)
    request = KeyedRequest("r", 100 * BLOCK, keys[:100])
    admit(manager, request)
    more_keys = iter(keys[100:])
    for _ in range(16):
        decode(manager, request, more_keys)
    with counting() as count:
        for _ in range(64):
            decode(manager, request, more_keys)
    assert count.opcodes / 4 < 1.25 * measured


def test_a_step_inside_its_block_takes_a_few_comparisons() -> None:
    manager = manager_of(MODELS["gemma3"], 10_000)
    keys = keys_of("r", 110)
    request = KeyedRequest("r", 100 * BLOCK + 3, keys[:100])
    admit(manager, request)
    for _ in range(3):
        decode(manager, request, iter(keys[100:]))
    with counting() as count:
        manager.allocate_slots(request, 1)
    assert count.opcodes < 75


# ---- the joint hit in its worst order


def worst_order(blocks: int) -> tuple[int, int]:
    """Bytecode and entries looked at, where two windows of one block have every other block, never the same."""
    windows = [SlidingWindowSpec(block_size=BLOCK, window=w) for w in (BLOCK, BLOCK + 1)]
    manager = manager_of((FULL, *windows), 3 * blocks + 8)
    keys = keys_of("r", blocks)
    request = KeyedRequest("r", blocks * BLOCK + 1, keys)
    admit(manager, request)
    rows = manager.get_block_ids("r")
    manager.free(request)
    manager.evict_blocks({*rows[1][0:blocks:2].tolist(), *rows[2][1:blocks:2].tolist()} - {0})
    before = manager.block_pool.arrays.probes
    again = KeyedRequest("again", blocks * BLOCK + 1, keys)
    with counting() as count:
        assert manager.get_computed_blocks(again).num_tokens == 0
    return count.opcodes, manager.block_pool.arrays.probes - before


def test_the_joint_hit_is_linear_in_its_worst_order() -> None:
    (short, _), (long, probes) = worst_order(1024), worst_order(4096)
    assert long < 4.4 * short
    assert long / 4096 < 1.25 * 270
    assert probes < 4 * 3 * 4096
