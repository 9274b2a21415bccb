"""A manager from a plug-in that raises: a clear error, nothing lost, nothing half done, and traffic goes on."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, note, settings
from hypothesis import strategies as st

from kvhybrid.cache.blocks import KVCacheBlocks
from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.errors import ManagerError, StaleHitError
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.conformance.invariants import check_invariants
from kvhybrid.conformance.records import Records
from kvhybrid.managers.arrays import int_array
from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.managers.pool.block_pool import BlockPool, BlockPoolError
from kvhybrid.scenarios.form import ScenarioStep
from kvhybrid.scenarios.player import Answer
from kvhybrid.specs import CrossAttentionSpec, FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec
from tests.kvhybrid.cache.checked_cache import CheckedCache, play
from tests.kvhybrid.cache.setups import Features, features
from tests.kvhybrid.cache.snapshots import Snapshot, snapshot

FULL = FullAttentionSpec(block_size=4)
WINDOW = SlidingWindowSpec(block_size=4, window=5)
STATE = MambaSpec(block_size=4)

COUNTING = ("search", "growth")
"""Asked before anything is taken."""
COMMITTING = ("adopt", "extend", "settle", "register")
"""Called when blocks are taken already."""
METHODS = (*COUNTING, "dead", "drop", *COMMITTING, "no_work_until")


class MistakeError(Exception):
    """What the plug-in raises."""


@dataclass
class Mistake:
    """When a plug-in raises: in the ``countdown``-th call of ``method``, before or after it did its work."""

    method: str = ""
    countdown: int = 0
    after: bool = False
    made: int = 0
    log: list[str] = field(default_factory=list)

    def plan(self, method: str, countdown: int, after: bool) -> None:
        self.method, self.countdown, self.after = method, countdown, after

    def strikes(self, method: str) -> bool:
        if method != self.method:
            return False
        self.countdown -= 1
        if self.countdown:
            return False
        self.made += 1
        return True


def plug_in(manager: KVCacheManager, mistake: Mistake) -> None:
    """Let plug-ins take the place of all single-type managers; they differ in that they make ``mistake``."""
    coordinator = manager.coordinator
    for c, built_in in enumerate(coordinator.managers):
        methods = {name: raising(name, type(built_in), mistake) for name in (*METHODS, "release")}
        made_by_user: type[SingleTypeKVCacheManager] = type("PlugIn", (type(built_in),), methods)
        coordinator.managers[c] = made_by_user(built_in.spec, built_in.pool, built_in.rules)


def raising(name: str, base: type[SingleTypeKVCacheManager], mistake: Mistake) -> Any:
    proper = getattr(base, name)

    def method(self: SingleTypeKVCacheManager, *args: Any) -> Any:
        strikes = mistake.strikes(name)
        if strikes and not mistake.after:
            raise MistakeError(f"before {name}")
        result = proper(self, *args)
        if strikes:
            raise MistakeError(f"after {name}")
        return result

    return method


# ---- a manager that raises, step by step


def manager_of(specs: list[KVCacheSpec], num_blocks: int = 30, **options: Any) -> tuple[KVCacheManager, Mistake]:
    groups = tuple(
        KVCacheGroup(f"g{g}", spec, private_blocks=options.get("private")) for g, spec in enumerate(specs)
    )
    config = KVCacheConfig(groups, num_blocks, hash_block_size=options.get("unit"))
    manager, mistake = KVCacheManager(config, max_model_len=100, track_misses=True, record_events=True), Mistake()
    plug_in(manager, mistake)
    return manager, mistake


def request_of(manager: KVCacheManager, name: str, num_tokens: int, first: int = 0) -> Request:
    return Request(name, range(first, first + num_tokens), hasher=manager.hasher)


def run(manager: KVCacheManager, request: Request, new: int) -> KVCacheBlocks | None:
    """One step of a request: look up and adopt if it is new, then ``new`` tokens."""
    manager.new_step_starts()
    found = manager.get_computed_blocks(request) if not request.num_computed_tokens else None
    hit = found.num_tokens if found else 0
    blocks = manager.allocate_slots(request, new, hit, found.blocks if found else None)
    manager.release_copies()
    if blocks is not None:
        request.num_computed_tokens += hit + new
        request.status = RequestStatus.RUNNING
    return blocks


def hit_of(manager: KVCacheManager, num_tokens: int) -> int:
    manager.new_step_starts()
    return manager.get_computed_blocks(request_of(manager, "look", num_tokens)).num_tokens


@pytest.mark.parametrize("after", [False, True], ids=["before its work", "after its work"])
@pytest.mark.parametrize("method", COMMITTING)
def test_a_failed_step_names_request_plug_in_and_mistake(method: str, after: bool) -> None:
    manager, mistake = manager_of([FULL, WINDOW])
    run(manager, request_of(manager, "first", 12), 12)
    mistake.plan(method, 1, after)
    with pytest.raises(
        ManagerError,
        match=r"request 'second'.* manager of 'full', tests\..*PlugIn raised MistakeError: .*rolled back",
    ) as error:
        run(manager, request_of(manager, "second", 24), 12)
    assert isinstance(error.value.__cause__, MistakeError)


@pytest.mark.parametrize("after", [False, True], ids=["before its work", "after its work"])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("method", COMMITTING)
def test_a_failed_admission_leaves_everything_as_it_was(method: str, group: int, after: bool) -> None:
    """Holders, tables and copies are those of before, and so are the keys of all blocks that it did not reuse."""
    manager, mistake = manager_of([FULL, WINDOW])
    run(manager, request_of(manager, "first", 12), 12)
    before = snapshot(manager)
    mistake.plan(method, group, after)
    second = request_of(manager, "second", 24)
    with pytest.raises(ManagerError):
        run(manager, second, 12)
    after_it = snapshot(manager)
    check_invariants(manager)
    assert (after_it.refs, after_it.tables, after_it.copies) == (before.refs, before.tables, before.copies)
    assert after_it.keys == before.keys
    assert set(after_it.queue) == set(before.queue)
    assert run(manager, second, 12) is not None
    check_invariants(manager)


@pytest.mark.parametrize("method", COMMITTING)
def test_a_failed_admission_does_not_cost_the_prefix_that_it_wanted_to_adopt(method: str) -> None:
    """The blocks of the hit lie free and cached; they go back to the free queue with their keys."""
    manager, mistake = manager_of([FULL, WINDOW])
    first = request_of(manager, "first", 12)
    run(manager, first, 12)
    manager.free(first)
    before = snapshot(manager)
    assert hit_of(manager, 24) == 12
    mistake.plan(method, 2, True)
    with pytest.raises(ManagerError):
        run(manager, request_of(manager, "second", 24), 12)
    assert snapshot(manager).keys == before.keys
    assert hit_of(manager, 24) == 12


@pytest.mark.parametrize(
    "specs", [[FULL], [FULL, WINDOW], [FULL, STATE]], ids=["full", "full+window", "full+state"]
)
def test_a_failed_step_leaves_no_key_for_tokens_that_it_did_not_compute(specs: list[KVCacheSpec]) -> None:
    """The step would have filled a block of an earlier step, which stays held: its key has to go."""
    manager, mistake = manager_of(specs)
    first = request_of(manager, "first", 16)
    run(manager, first, 6)
    mistake.plan("register", len(specs), True)
    with pytest.raises(ManagerError):
        run(manager, first, 2)
    check_invariants(manager)
    assert first.num_computed_tokens == 6
    assert hit_of(manager, 16) <= 4, "tokens 6 and 7 were never computed"
    run(manager, first, 2)
    assert hit_of(manager, 16) == 8, "now they are"


@pytest.mark.parametrize("after", [False, True], ids=["before its work", "after its work"])
def test_blocks_that_a_failed_drop_kept_go_back_later(after: bool) -> None:
    """The window has left a block behind; the drop fails; when the request ends nothing is lost."""
    manager, mistake = manager_of([FULL, WINDOW])
    first = request_of(manager, "first", 24)
    run(manager, first, 12)
    mistake.plan("drop", 1, after)
    with pytest.raises(ManagerError):
        run(manager, first, 4)
    check_invariants(manager)
    assert run(manager, first, 4) is not None
    check_invariants(manager)
    manager.free(first)
    check_invariants(manager)
    assert manager.usage == 0.0


@pytest.mark.parametrize("group", [1, 2])
def test_a_failed_free_loses_no_block_for_good(group: int) -> None:
    """The request is gone: every block that it held is free."""
    manager, mistake = manager_of([FULL, WINDOW])
    first = request_of(manager, "first", 12)
    run(manager, first, 12)
    mistake.plan("release", group, False)
    with pytest.raises(ManagerError):
        manager.free(first)
    manager.free(first)
    check_invariants(manager)
    assert manager.usage == 0.0


def test_a_mistake_after_the_last_prompt_token_undoes_that_step_too() -> None:
    """The scheduler sees an error, and so must find the request as it was."""
    manager, mistake = manager_of([FULL, WINDOW])
    first = request_of(manager, "first", 8)
    before = snapshot(manager)
    mistake.plan("no_work_until", 2, True)
    with pytest.raises(ManagerError):
        run(manager, first, 8)
    after = snapshot(manager)
    assert (after.refs, after.tables, after.keys) == (before.refs, before.tables, before.keys)
    check_invariants(manager)


@pytest.mark.parametrize("method", COUNTING)
def test_a_manager_that_raises_while_counting_has_changed_nothing(method: str) -> None:
    manager, mistake = manager_of([FULL, WINDOW])
    run(manager, request_of(manager, "first", 12), 12)
    before = snapshot(manager)
    second = request_of(manager, "second", 24)
    mistake.plan(method, 2, False)
    with pytest.raises(MistakeError if method == "search" else ManagerError):
        run(manager, second, 12)
    assert snapshot(manager) == before
    assert run(manager, second, 12) is not None


def test_a_failed_step_of_a_running_request_gives_back_what_it_took() -> None:
    manager, mistake = manager_of([FULL, WINDOW])
    first = request_of(manager, "first", 24)
    run(manager, first, 4)
    before = snapshot(manager)
    mistake.plan("extend", 2, True)
    with pytest.raises(ManagerError):
        run(manager, first, 3)
    after = snapshot(manager)
    assert (after.refs, after.tables, after.keys) == (before.refs, before.tables, before.keys)
    assert run(manager, first, 3) is not None


def test_a_failed_copy_is_forgotten() -> None:
    """A hit inside a block needs a copy; when the step fails no copy is due, and both ends are free."""
    manager, mistake = manager_of([FullAttentionSpec(block_size=8), MambaSpec(block_size=8)], unit=4)
    first = request_of(manager, "first", 13)
    run(manager, first, 12)
    run(manager, first, 1)
    manager.free(first)
    again = request_of(manager, "again", 13)
    manager.new_step_starts()
    assert manager.get_computed_blocks(again).num_tokens == 12
    mistake.plan("extend", 2, True)
    with pytest.raises(ManagerError):
        run(manager, again, 1)
    assert manager.take_copies() == []
    assert manager.usage == 0.0
    check_invariants(manager)


def test_a_failed_step_in_private_pools_gives_back_to_each() -> None:
    manager, mistake = manager_of([FULL, WINDOW], private=20)
    first = request_of(manager, "first", 24)
    run(manager, first, 4)
    before = snapshot(manager)
    mistake.plan("extend", 2, True)
    with pytest.raises(ManagerError):
        run(manager, first, 12)
    after = snapshot(manager)
    assert (after.refs, after.tables) == (before.refs, before.tables)
    check_invariants(manager)


def test_events_still_rebuild_the_cache_after_a_failed_step() -> None:
    manager, mistake = manager_of([FULL, WINDOW])
    records = Records(manager)
    run(manager, request_of(manager, "first", 12), 12)
    for method in COMMITTING:
        mistake.plan(method, 2, True)
        with pytest.raises(ManagerError):
            run(manager, request_of(manager, method, 24), 12)
        records.check()


# ---- a manager that raises, anywhere in random traffic


class FaultyCache(CheckedCache):
    """A cache whose plug-ins make mistakes; a call that fails is given up, as a scheduler would."""

    def __init__(self, manager: KVCacheManager, mistake: Mistake, rng: random.Random) -> None:
        super().__init__(manager)
        self.mistake = mistake
        self.rng = rng

    def call(self, step: ScenarioStep) -> Answer:
        if step["do"] not in ("lookup", "allocate"):
            return super().call(step)
        if self.looked_up is None and self.rng.random() < 0.4:
            self.mistake.plan(self.rng.choice(METHODS), self.rng.randint(1, 4), self.rng.random() < 0.5)
        before = snapshot(self.manager)
        try:
            return super().call(step)
        except (MistakeError, ManagerError) as error:
            self._assert_undone(before, error)
            return {}
        finally:
            if step["do"] == "allocate":
                self.mistake.plan("", 0, False)

    def _assert_undone(self, before: Snapshot, error: Exception) -> None:
        event(f"{self.mistake.method} raised {type(error).__name__}")
        note(f"{self.mistake.method}: {error}")
        check_invariants(self.manager)
        self.records.check()
        after = snapshot(self.manager)
        assert isinstance(error, ManagerError) == (self.mistake.method != "search"), (
            "a look-up has nothing to undo"
        )
        if self.mistake.method == "search":
            assert after == before
        assert after.tables.keys() == before.tables.keys()
        for block, keys in after.keys.items():
            assert keys <= before.keys.get(block, frozenset()), "a failed step left a key"
        assert sum(after.refs.values()) <= sum(before.refs.values())
        assert after.copies == before.copies


@given(features(), st.integers(0, 2**32 - 1), st.integers(1, 90))
@settings(max_examples=30)
def test_traffic_goes_on_after_any_mistake(setup: Features, seed: int, actions: int) -> None:
    manager, mistake = setup.build(), Mistake()
    plug_in(manager, mistake)
    play(FaultyCache(manager, mistake, random.Random(seed)), seed, actions)


# ---- calls that would break a pool


@pytest.fixture
def pool() -> BlockPool:
    pool = BlockPool(8, num_groups=1)
    pool.take(4)
    return pool


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([5], r"blocks \[5\] are free already"),
        ([1, 1], r"one is released more often than it is held"),
        ([1, 8], r"blocks \[8\] are not in this pool of 8"),
        ([-1], r"blocks \[-1\] are not in this pool of 8"),
    ],
    ids=["double free", "twice in one call", "foreign id", "negative id"],
)
def test_a_wrong_free_is_refused_and_changes_nothing(pool: BlockPool, ids: list[int], message: str) -> None:
    refs, queue = pool.refs.copy(), pool.free_queue()
    with pytest.raises(BlockPoolError, match=message):
        pool.release(int_array(ids))
    assert np.array_equal(pool.refs, refs)
    assert pool.free_queue() == queue


@pytest.mark.parametrize("count", [4, 100, -1])
def test_more_blocks_than_are_free_are_never_given(pool: BlockPool, count: int) -> None:
    with pytest.raises(BlockPoolError, match=rf"{count} blocks asked for, 3 of 8 are free"):
        pool.take(count)
    assert pool.num_free == 3


def test_blocks_to_evict_must_be_of_the_pool(pool: BlockPool) -> None:
    for ids in ([8], [-1], [1, 100]):
        with pytest.raises(BlockPoolError, match=r"must lie in \[0, 8\)"):
            pool.evict(ids)


def test_a_request_freed_twice_gives_back_once() -> None:
    manager, _ = manager_of([FULL, WINDOW])
    request = request_of(manager, "r", 8)
    run(manager, request, 8)
    manager.free(request)
    queue = manager.block_pool.free_queue()
    manager.free(request)
    assert manager.block_pool.free_queue() == queue
    check_invariants(manager)


def test_a_request_that_the_pool_cannot_hold_is_refused_and_takes_nothing() -> None:
    manager, _ = manager_of([FULL, CrossAttentionSpec(block_size=4)], num_blocks=4)
    before = snapshot(manager)
    assert run(manager, request_of(manager, "r", 40), 40) is None
    assert snapshot(manager) == before


def test_a_hit_that_is_out_of_date_is_an_error_and_changes_nothing() -> None:
    """Between look-up and allocation its blocks lost their keys."""
    manager, _ = manager_of([FULL])
    first = request_of(manager, "first", 8)
    run(manager, first, 8)
    manager.free(first)
    second = request_of(manager, "second", 12)
    manager.new_step_starts()
    found = manager.get_computed_blocks(second)
    manager.reset_prefix_cache()
    before = snapshot(manager)
    with pytest.raises(StaleHitError, match=r"out of date"):
        manager.allocate_slots(second, 4, found.num_tokens, found.blocks)
    after = snapshot(manager)
    check_invariants(manager)
    assert (after.refs, after.tables, after.keys) == (before.refs, before.tables, before.keys)
