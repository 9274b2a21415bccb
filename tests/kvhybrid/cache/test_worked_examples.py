"""Worked examples: small caches whose every block number can be checked by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.extra_keys import LoRA, MediaItem
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.specs import FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec


class Desk:
    """A cache manager and the few counters of a scheduler, so that an example reads as its story."""

    def __init__(self, specs: Sequence[KVCacheSpec], num_blocks: int, **options: object) -> None:
        groups = tuple(KVCacheGroup(f"g{i}", spec) for i, spec in enumerate(specs))
        unit = options.pop("hash_block_size", None)
        config = KVCacheConfig(groups, num_blocks, hash_block_size=unit)  # type: ignore[arg-type]
        self.manager = KVCacheManager(config, **{"max_model_len": 8192, **options})  # type: ignore[arg-type]
        self.pool = self.manager.block_pool

    def request(self, name: str, tokens: Sequence[int], **options: object) -> Request:
        return Request(name, tokens, hasher=self.manager.hasher, **options)  # type: ignore[arg-type]

    def step(self, request: Request, new: int, **options: object) -> bool:
        """Compute ``new`` more tokens of a running request."""
        self.manager.new_step_starts()
        blocks = self.manager.allocate_slots(request, new, **options)  # type: ignore[arg-type]
        request.num_computed_tokens += new if blocks is not None else 0
        return blocks is not None

    def admit(self, request: Request, new: int | None = None, **options: object) -> int | None:
        """Look up, adopt, and compute ``new`` tokens, or all: the hit, or None where it was refused."""
        self.manager.new_step_starts()
        found = self.manager.get_computed_blocks(request)
        request.shared_prefix_boundary = found.junction
        new = request.num_tokens - found.num_tokens if new is None else new
        options.setdefault("has_scheduled_reqs", False)
        blocks = self.manager.allocate_slots(request, new, found.num_tokens, found.blocks, **options)  # type: ignore[arg-type]
        if blocks is None:
            return None
        request.num_computed_tokens = found.num_tokens + new
        request.status = RequestStatus.RUNNING
        return found.num_tokens

    def decode(self, request: Request, token: int) -> None:
        request.append_output_token_ids([token])
        assert self.step(request, 1)

    def table(self, request: Request, group: int = 0) -> list[int]:
        return self.manager.get_block_ids(request.request_id)[group].tolist()

    def refs(self, *blocks: int) -> list[int]:
        return [int(self.pool.refs[block]) for block in blocks]

    def cached(self) -> set[int]:
        return {block for block in range(self.pool.num_blocks) if self.pool.keys.of(block)}


def full(num_blocks: int, size: int = 4, **options: object) -> Desk:
    return Desk([FullAttentionSpec(block_size=size)], num_blocks, **options)


SYSTEM = list(range(100, 112))
"""A system prompt of 12 tokens."""


def test_two_requests_share_the_blocks_of_their_common_prefix() -> None:
    """R1 has 40 tokens, R2 the same first 32; blocks of 16."""
    desk = full(9, size=16)
    r1 = desk.request("R1", range(40))
    assert desk.admit(r1) == 0
    a, b, c = desk.table(r1)
    assert desk.refs(a, b, c) == [1, 1, 1]
    assert desk.cached() == {a, b}, "the third block has 8 tokens"

    r2 = desk.request("R2", [*range(32), *range(500, 508)])
    assert desk.admit(r2) == 32
    d = desk.table(r2)[2]
    assert desk.table(r2) == [a, b, d]
    assert desk.refs(a, b, c, d) == [2, 2, 1, 1]

    for token in range(4):
        desk.decode(r1, 900 + token)
    assert desk.table(r1) == [a, b, c], "44 tokens still fit three blocks"
    desk.manager.free(r1)
    assert desk.refs(a, b, c, d) == [1, 1, 0, 1]
    assert desk.pool.free_queue()[0] == c

    desk.manager.free(r2)
    assert desk.pool.free_queue() == [d, c, 5, 6, 7, 8, b, a]

    r3 = desk.request("R3", [*range(32), 777])
    assert desk.manager.get_computed_blocks(r3).blocks.get_block_ids() == ([a, b],)


def test_tenants_prompts_and_eviction_in_a_pool_of_twelve() -> None:
    desk = full(12)
    first = desk.request("A", [*SYSTEM, 1, 2, 3, 4, 5])
    second = desk.request("B", [*SYSTEM, 7, 8, 9, 10])
    assert desk.admit(first) == 0
    assert desk.table(first) == [1, 2, 3, 4, 5]
    assert desk.admit(second) == 12
    assert desk.table(second) == [1, 2, 3, 6]
    assert desk.refs(1, 2, 3, 4, 5, 6) == [2, 2, 2, 1, 1, 1]

    desk.manager.free(first)
    desk.manager.free(second)
    assert desk.pool.free_queue() == [5, 7, 8, 9, 10, 11, 4, 6, 3, 2, 1]

    salted = desk.request("C", [*SYSTEM, 7, 8, 9, 10], cache_salt="T2")
    assert desk.admit(salted) == 0, "another tenant's salt"
    assert desk.table(salted) == [5, 7, 8, 9]

    again = desk.request("D", [*SYSTEM, 7, 8, 9, 10])
    assert desk.admit(again) == 12, "a full hit computes its last block again"
    assert desk.table(again) == [1, 2, 3, 10]
    assert desk.pool.free_queue() == [11, 4, 6]
    assert {4, 6} <= desk.cached()

    new = desk.request("E", range(500, 512))
    assert desk.admit(new) == 0
    assert desk.table(new) == [11, 4, 6], "the oldest cached blocks go first"
    assert desk.pool.evictions.tolist() == [2]


def test_the_free_queue_step_by_step_in_a_pool_of_eleven() -> None:
    desk = full(11)

    def queue() -> str:
        return " ".join(f"{b}*" if b in desk.cached() else str(b) for b in desk.pool.free_queue())

    def letters(text: str) -> list[int]:
        return [ord(letter) for letter in text]

    assert queue() == "1 2 3 4 5 6 7 8 9 10"
    r0 = desk.request("r0", letters("ABCDEFGHIJKLMNO"))
    assert (desk.admit(r0), desk.table(r0)) == (0, [1, 2, 3, 4])
    assert queue() == "5 6 7 8 9 10"
    r1 = desk.request("r1", letters("ABCDEFGHIJxxxx"))
    assert (desk.admit(r1), desk.table(r1)) == (8, [1, 2, 5, 6])
    assert queue() == "7 8 9 10"
    desk.manager.free(r0)
    assert queue() == "4 7 8 9 10 3*"
    desk.manager.free(r1)
    assert queue() == "6 4 7 8 9 10 3* 5* 2* 1*"
    r2 = desk.request("r2", letters("ABCDEFGHIJKL" + "y" * 17))
    assert (desk.admit(r2), desk.table(r2)) == (12, [1, 2, 3, 6, 4, 7, 8, 9])
    assert queue() == "10 5*"
    assert desk.pool.evictions.tolist() == [0]
    r3 = desk.request("r3", letters("zzzzzzzz"))
    assert (desk.admit(r3), desk.table(r3)) == (0, [10, 5])
    assert queue() == ""
    assert desk.pool.evictions.tolist() == [1], "block 5 was the first to lose its key"


def test_a_timestamp_in_front_leaves_no_hit() -> None:
    desk = full(40)
    for stamp in range(3):
        assert desk.admit(desk.request(f"r{stamp}", [9000 + stamp, *SYSTEM, 1, 2])) == 0


@pytest.mark.parametrize(
    ("num_tokens", "size", "blocks"),
    [(1024, 16, 63), (1000, 16, 62), (16, 4, 3), (17, 4, 4), (4, 4, 0), (5, 4, 1)],
)
def test_a_resent_prompt_computes_at_least_its_last_token(num_tokens: int, size: int, blocks: int) -> None:
    desk = full(80, size=size)
    first = desk.request("first", range(num_tokens))
    desk.admit(first)
    desk.manager.free(first)
    found = desk.manager.get_computed_blocks(desk.request("again", range(num_tokens)))
    assert found.num_tokens == blocks * size
    assert len(found.blocks.get_block_ids()[0]) == blocks
    assert found.junction == 0


def test_a_fourth_block_is_taken_for_the_49th_token() -> None:
    desk = full(10, size=16)
    request = desk.request("r", range(32))
    desk.admit(request)
    desk.decode(request, 1)
    assert len(desk.table(request)) == 3
    for token in range(15):
        desk.decode(request, token)
    assert (request.num_computed_tokens, len(desk.table(request))) == (48, 3)
    desk.decode(request, 2)
    assert (request.num_computed_tokens, len(desk.table(request))) == (49, 4)


def test_a_running_request_gets_the_new_blocks_alone() -> None:
    desk = full(10)
    request = desk.request("r", range(6))
    desk.admit(request)
    request.append_output_token_ids([1, 2, 3])
    added = desk.manager.allocate_slots(request, 3)
    assert added is not None
    assert added.get_block_ids() == ([3],)
    assert desk.table(request) == [1, 2, 3]


@pytest.mark.parametrize("must_fit", [False, True])
def test_free_hit_blocks_count_against_the_free_ones(must_fit: bool) -> None:
    """3 hit blocks lie in the free queue, 1 more is needed, and exactly 3 are free: 4 > 3."""
    desk = full(4)
    first = desk.request("first", range(12))
    desk.admit(first)
    desk.manager.free(first)
    before = desk.pool.free_queue()
    second = desk.request("second", range(13))
    assert desk.manager.get_computed_blocks(second).num_tokens == 12
    assert desk.admit(second, full_sequence_must_fit=must_fit) is None
    assert desk.pool.free_queue() == before
    assert desk.cached() == {1, 2, 3}


def test_held_hit_blocks_cost_nothing() -> None:
    desk = full(5)
    first = desk.request("first", range(12))
    desk.admit(first)
    assert desk.admit(desk.request("second", range(13))) == 12
    assert desk.manager.num_free_blocks == 0


def test_usage_leaves_the_null_block_out_and_counts_cached_blocks_as_free() -> None:
    desk = full(1000, size=16, max_model_len=999 * 16)
    request = desk.request("r", range(999 * 16))
    assert desk.admit(request) == 0
    assert desk.manager.usage == 1.0
    assert desk.admit(desk.request("more", range(50_000, 50_001))) is None
    desk.manager.free(request)
    assert desk.manager.usage == 0.0
    assert len(desk.cached()) == 999


def test_a_chat_of_2500_tokens_holds_157_blocks() -> None:
    desk = full(27_955, size=16)
    request = desk.request("chat", range(2000))
    desk.admit(request)
    for token in range(500):
        desk.decode(request, token)
    assert len(desk.table(request)) == 157
    assert desk.manager.usage == pytest.approx(157 / 27_954)


def test_a_low_usage_says_nothing_about_what_survives() -> None:
    desk = full(11)
    old = desk.request("old", range(32))
    desk.admit(old)
    desk.manager.free(old)
    for wave in range(4):
        other = desk.request(f"w{wave}", range(1000 * (wave + 1), 1000 * (wave + 1) + 12))
        desk.admit(other)
        desk.manager.free(other)
        assert desk.manager.usage == 0.0
    assert desk.manager.get_computed_blocks(desk.request("again", range(32))).num_tokens == 0


def test_the_watermark_holds_back_new_requests_only() -> None:
    desk = full(10, watermark=0.25)
    assert desk.manager.watermark_blocks == 2, "a quarter of ten blocks, rounded down"
    running = desk.request("running", range(24))
    assert desk.admit(running) == 0
    newcomer = desk.request("newcomer", range(500, 508))
    assert desk.admit(newcomer, has_scheduled_reqs=True) is None, "2 of 3 blocks would leave 1"
    assert desk.admit(newcomer, new=4, has_scheduled_reqs=True) == 0, "1 of 3 leaves 2"
    for token in range(8):
        desk.decode(running, token)
    assert desk.manager.num_free_blocks == 0, "a running request may take the last"
    preempted = desk.request("preempted", range(4))
    preempted.status = RequestStatus.PREEMPTED
    desk.manager.free(newcomer)
    assert desk.admit(preempted, has_scheduled_reqs=True) is None
    assert desk.admit(preempted, has_scheduled_reqs=False) == 0, "alone it may"


def test_reserved_blocks_are_left_for_others() -> None:
    desk = full(5)
    request = desk.request("r", range(12))
    assert desk.admit(request, reserved_blocks=2) is None
    assert desk.admit(request, reserved_blocks=1) == 0


def test_a_reset_waits_until_no_block_is_held() -> None:
    desk = full(10)
    request = desk.request("r", range(8))
    desk.admit(request)
    assert not desk.manager.reset_prefix_cache()
    assert desk.cached() == {1, 2}
    desk.manager.free(request)
    assert desk.manager.reset_prefix_cache()
    assert desk.cached() == set()
    assert desk.admit(desk.request("again", range(8))) == 0


def test_identical_requests_that_run_together_are_not_merged() -> None:
    desk = full(10)
    first = desk.request("first", range(8))
    desk.admit(first)
    second = desk.request("second", range(8))
    assert desk.admit(second) == 4
    assert desk.table(second) == [1, 3], "the last block is computed again"
    assert desk.pool.keys.of(2) == desk.pool.keys.of(3), "both are keyed alike"
    longer = desk.request("longer", range(9))
    assert desk.manager.get_computed_blocks(longer).blocks.get_block_ids() == ([1, 2],)
    desk.manager.evict_blocks([2])
    assert desk.manager.get_computed_blocks(longer).blocks.get_block_ids() == ([1, 3],)


def test_without_prefix_caching_the_pool_is_last_in_first_out() -> None:
    desk = full(8, enable_caching=False)
    first, second = desk.request("first", range(8)), desk.request("second", range(8))
    assert desk.admit(first) == 0
    assert desk.admit(second) == 0
    assert desk.cached() == set()
    desk.manager.free(first)
    assert desk.pool.free_queue() == [2, 1, 5, 6, 7]
    desk.manager.free(second)
    assert desk.pool.free_queue() == [4, 3, 2, 1, 5, 6, 7]


def test_what_a_key_depends_on() -> None:
    desk = full(60)
    base = desk.request("base", range(12))
    desk.admit(base)
    others = {
        "salt": desk.request("salt", range(12), cache_salt="s"),
        "adapter": desk.request("adapter", range(12), lora=LoRA("a", "p")),
        "no salt": desk.request("no salt", range(12), cache_salt=""),
        "media": desk.request("media", range(12), media=[MediaItem("picture", 5, 2)]),
        "no reading": desk.request("no reading", range(12), skip_reading_prefix_cache=True),
    }
    hits = {name: desk.manager.get_computed_blocks(request).num_tokens for name, request in others.items()}
    assert hits == {"salt": 0, "adapter": 0, "no salt": 8, "media": 4, "no reading": 0}


def test_nothing_to_allocate_is_an_error() -> None:
    desk = full(10)
    with pytest.raises(ValueError, match="no tokens to allocate"):
        desk.manager.allocate_slots(desk.request("r", range(4)), 0)


# ---- the joint hit: full B = 4, window B = 8 of 9 tokens, keys every 4 tokens, 40 tokens admitted


@pytest.mark.parametrize(
    ("evicted", "num_tokens", "hit", "blocks", "junction"),
    [
        ([], 41, 40, ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [0, 0, 0, 0, 15]), 0),
        ([], 40, 32, ([1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 0, 14]), 0),
        ([15], 41, 32, ([1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 0, 14]), 40),
        ([14], 33, 24, ([1, 2, 3, 4, 5, 6], [0, 0, 13]), 32),
        ([4], 41, 8, ([1, 2], [11]), 0),
    ],
)
def test_full_attention_and_a_window_of_other_blocks(
    evicted: list[int], num_tokens: int, hit: int, blocks: tuple[list[int], ...], junction: int
) -> None:
    specs = [FullAttentionSpec(block_size=4), SlidingWindowSpec(block_size=8, window=9)]
    desk = Desk(specs, 40, hash_block_size=4)
    request = desk.request("r", range(40))
    desk.admit(request)
    assert desk.table(request, 0) == [*range(1, 11)]
    assert desk.table(request, 1) == [*range(11, 16)]
    desk.manager.evict_blocks(evicted)
    found = desk.manager.get_computed_blocks(desk.request("probe", range(num_tokens)))
    assert found.num_tokens == hit
    assert found.blocks.get_block_ids() == blocks
    assert found.junction == junction


# ---- full attention and a state: 18 tokens in chunks of 8, 8 and 2


def full_and_state() -> tuple[Desk, Request]:
    desk = Desk([FullAttentionSpec(block_size=4), MambaSpec(block_size=4)], 20, hash_block_size=4)
    request = desk.request("r", range(18))
    desk.admit(request, new=8)
    return desk, request


def test_a_state_moves_on_and_leaves_one_behind_for_a_step() -> None:
    desk, request = full_and_state()
    assert (desk.table(request, 0), desk.table(request, 1)) == ([1, 2], [0, 3])
    desk.step(request, 8)
    assert (desk.table(request, 0), desk.table(request, 1)) == ([1, 2, 4, 5], [0, 3, 0, 6])
    desk.step(request, 2)
    assert (desk.table(request, 0), desk.table(request, 1)) == ([1, 2, 4, 5, 7], [0, 0, 0, 6, 8])


@pytest.mark.parametrize(
    ("evicted", "hit", "blocks", "junction"),
    [
        ([], 16, ([1, 2, 4, 5], [0, 0, 0, 6]), 0),
        ([4], 8, ([1, 2], [0, 3]), 0),
        ([2], 0, ([], []), 4),
    ],
)
def test_a_hit_needs_the_state_at_its_end(
    evicted: list[int], hit: int, blocks: tuple[list[int], ...], junction: int
) -> None:
    desk, request = full_and_state()
    desk.step(request, 8)
    desk.step(request, 2)
    desk.manager.free(request)
    desk.manager.new_step_starts()
    desk.manager.evict_blocks(evicted)
    found = desk.manager.get_computed_blocks(desk.request("again", range(18)))
    assert found.num_tokens == hit
    assert found.blocks.get_block_ids() == blocks
    assert found.junction == junction


def test_a_state_of_this_step_can_be_found_but_not_adopted_before_the_next() -> None:
    desk, _ = full_and_state()
    other = desk.request("other", range(9))
    found = desk.manager.get_computed_blocks(other)
    assert found.num_tokens == 8
    before = desk.pool.free_queue()
    assert desk.manager.allocate_slots(other, 1, 8, found.blocks) is None
    assert desk.pool.free_queue() == before
    desk.manager.new_step_starts()
    assert desk.manager.allocate_slots(other, 1, 8, found.blocks) is not None
    assert desk.table(other, 1) == [0, 3, 5]


def test_the_whole_sequence_check_knows_that_a_state_needs_two_blocks() -> None:
    """One free block, blocks of 4, 9 tokens: the second chunk could never be computed."""
    desk = Desk([MambaSpec(block_size=4)], 2)
    request = desk.request("r", range(9))
    assert desk.admit(request, new=8, full_sequence_must_fit=True) is None
    assert desk.admit(request, new=8) == 0
    assert not desk.step(request, 1)


@pytest.mark.parametrize(("interval", "hit"), [(0, 6), (None, 14)])
def test_keeping_the_latest_boundary_alone_costs_hits_on_the_next_turn(interval: int | None, hit: int) -> None:
    """An 8-token prompt, then 6 decoded tokens: the next turn has all 14 and a few more."""
    specs = [FullAttentionSpec(block_size=2), SlidingWindowSpec(block_size=2, window=3)]
    desk = Desk(specs, 60, retention_interval=interval)
    request = desk.request("turn 1", range(8))
    desk.admit(request)
    for token in range(8, 14):
        desk.decode(request, token)
    desk.manager.free(request)
    assert desk.manager.get_computed_blocks(desk.request("turn 2", range(18))).num_tokens == hit
