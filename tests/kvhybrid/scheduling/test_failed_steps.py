"""A step that fails, wherever it does: no key stays on what was not written, and no request is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kvhybrid.cache.blocks import KVCacheBlocks
from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.errors import ManagerError
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.cli import main
from kvhybrid.conformance.invariants import check_empty, check_invariants
from kvhybrid.conformance.records import Records, keys_in_pools
from kvhybrid.managers.pool.keys import MANY
from kvhybrid.scenarios.recorder import Recorder
from kvhybrid.scheduling.base import CapacityError, SchedulerOutput
from kvhybrid.scheduling.scheduler import Scheduler
from kvhybrid.specs import FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec

FULL = FullAttentionSpec(block_size=4)
WINDOW = SlidingWindowSpec(block_size=4, window=9)
STATE = MambaSpec(block_size=4)
WIDE = (FullAttentionSpec(block_size=8), MambaSpec(block_size=8))
MODELS: dict[str, tuple[tuple[KVCacheSpec, ...], int | None]] = {
    "full": ((FULL,), None),
    "window": ((FULL, WINDOW), None),
    "state": ((FULL, STATE), None),
    "inside blocks": (WIDE, 4),
}


class MistakeError(Exception):
    """What a failing call raises."""


class FailingCache(KVCacheManager):
    """``allocate_slots`` raises once, before or after its work."""

    error: BaseException = MistakeError()
    calls_left = 0
    after = False

    def fail_at(self, call: int, error: BaseException, after: bool) -> None:
        """At the ``call``-th time from now on; 0 for never."""
        self.calls_left, self.error, self.after = call, error, after

    def allocate_slots(self, *args: Any, **options: Any) -> KVCacheBlocks | None:
        self.calls_left -= 1
        if self.calls_left:
            return super().allocate_slots(*args, **options)
        if self.after:
            super().allocate_slots(*args, **options)
        raise self.error


def cache_of(specs: Sequence[KVCacheSpec], unit: int | None = None, **options: Any) -> FailingCache:
    groups = tuple(
        KVCacheGroup(f"g{g}", spec, private_blocks=options.get("private")) for g, spec in enumerate(specs)
    )
    config = KVCacheConfig(groups, options.get("num_blocks", 200), hash_block_size=unit)
    return FailingCache(config, max_model_len=200, track_misses=True, record_events=True)


class Driver:
    """A scheduler whose steps may fail, and the keys of all that was written."""

    def __init__(self, cache: Any, **limits: int) -> None:
        self.cache = cache
        self.scheduler = Scheduler(cache, **{"max_batched_tokens": 40, "max_num_seqs": 6, **limits})
        self.records = Records(cache)
        self.written: set[tuple[int, bytes]] = set()
        self.requests: dict[str, Request] = {}

    def submit(self, name: str, first: int, num_tokens: int, max_new_tokens: int = 6) -> Request:
        prompt = range(first, first + num_tokens)
        request = Request(name, prompt, max_new_tokens=max_new_tokens, hasher=self.cache.hasher)
        self.scheduler.add_request(request)
        self.requests[name] = request
        return request

    def keys(self) -> set[tuple[int, bytes]]:
        return {(g, key) for g, keys in enumerate(keys_in_pools(self.cache)) for key in keys}

    def settle(self, output: SchedulerOutput) -> None:
        sampled = {item.request.request_id: 3 for item in output.scheduled if item.samples}
        self.scheduler.update_from_output(output, sampled)
        self.written |= self.keys()
        self.check()

    def step(self) -> None:
        self.settle(self.scheduler.schedule())

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def check(self) -> None:
        check_invariants(self.cache)
        self.records.check()

    def check_failed(self) -> None:
        """After a failure: what has a key was written, nobody holds a block, and nobody is lost."""
        self.check()
        assert self.keys() <= self.written, "a key is left on what was not written"
        assert self.cache.take_copies() == []
        assert not self.scheduler.running
        assert all(request.num_computed_tokens == 0 for request in self.scheduler.waiting)
        unfinished = [r for r in self.requests.values() if r.status is not RequestStatus.FINISHED]
        assert sorted(r.request_id for r in self.scheduler.waiting) == sorted(r.request_id for r in unfinished)

    def finish(self) -> None:
        while self.scheduler.has_unfinished:
            self.step()
        for request in self.requests.values():
            assert request.status is RequestStatus.FINISHED
            assert request.num_output_tokens == request.max_new_tokens
        check_empty(self.cache)


def busy(specs: Sequence[KVCacheSpec], unit: int | None, steps: int, **options: Any) -> Driver:
    driver = Driver(cache_of(specs, unit, **options))
    for i in range(5):
        driver.submit(f"r{i}", (0, 0, 500, 0, 900)[i], 13 + 5 * i)
    for _ in range(steps):
        driver.step()
    return driver


@pytest.mark.parametrize("error", [MistakeError(), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("after", [False, True], ids=["before its work", "after its work"])
@pytest.mark.parametrize("model", MODELS)
def test_an_error_in_the_middle_of_scheduling(
    model: str, after: bool, steps: int, call: int, error: BaseException
) -> None:
    """The requests that were scheduled before it in the step get no forward pass either."""
    driver = busy(*MODELS[model], steps)
    driver.cache.fail_at(call, error, after)
    with pytest.raises(type(error)):
        driver.steps(10)
    driver.check_failed()
    driver.finish()


@pytest.mark.parametrize("method", ["growth", "adopt", "extend", "settle", "register", "dead", "no_work_until"])
@pytest.mark.parametrize("error", [MistakeError(), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("countdown", [1, 4, 9])
@pytest.mark.parametrize("model", MODELS)
def test_an_error_in_the_middle_of_an_allocation(
    model: str, countdown: int, error: BaseException, method: str
) -> None:
    """An interrupt is passed on as it is; it undoes the call as a plug-in's error does."""
    driver = busy(*MODELS[model], 0)
    left = countdown

    def raising_after(proper: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            nonlocal left
            left -= 1
            found = proper(*args)
            if left == 0:
                raise error
            return found

        return call

    for c, own in enumerate(driver.cache.coordinator.managers):
        raising = raising_after(getattr(type(own), method))
        plug_in = type("PlugIn", (type(own),), {method: raising})
        driver.cache.coordinator.managers[c] = plug_in(own.spec, own.pool, own.rules)
    raised = type(error) if isinstance(error, KeyboardInterrupt) else ManagerError
    try:
        while driver.scheduler.has_unfinished:
            driver.step()
    except raised:
        driver.check_failed()
    driver.finish()


@pytest.mark.parametrize("model", MODELS)
def test_after_an_error_and_an_abort_no_token_is_hit_that_nobody_computed(model: str) -> None:
    driver = busy(*MODELS[model], 0)
    driver.cache.fail_at(2, MistakeError(), after=False)
    with pytest.raises(MistakeError):
        driver.step()
    for name in list(driver.requests):
        driver.scheduler.abort(name)
    again = Request("again", range(200), hasher=driver.cache.hasher)
    driver.cache.new_step_starts()
    assert driver.cache.get_computed_blocks(again).num_tokens == 0
    check_empty(driver.cache)


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
@pytest.mark.parametrize("model", MODELS)
def test_a_forward_pass_that_failed(model: str, steps: int, deferred: bool) -> None:
    """Also while the blocks of a request that has ended are still being read."""
    driver = busy(*MODELS[model], steps)
    held = None
    if deferred:
        ended = Request("ended", range(40), hasher=driver.cache.hasher)
        driver.cache.new_step_starts()
        assert driver.cache.allocate_slots(ended, 40) is not None
        driver.written |= driver.keys()
        held = driver.cache.pop_blocks_for_free(ended)
    output = driver.scheduler.schedule()
    driver.scheduler.discard_output(output)
    assert driver.keys() <= driver.written
    assert not driver.scheduler.running
    if held is not None:
        driver.cache.free_blocks(held)
    driver.check_failed()
    driver.finish()


def test_what_earlier_steps_wrote_is_still_hit() -> None:
    driver = busy((FULL,), None, 2)
    written = set(driver.written)
    driver.scheduler.discard_output(driver.scheduler.schedule())
    assert driver.keys() == written
    output = driver.scheduler.schedule()
    assert any(item.start for item in output.scheduled), "it goes on from what was written"
    driver.settle(output)
    driver.finish()


@pytest.mark.parametrize("wrong", ["missing", "no integer"])
@pytest.mark.parametrize("model", MODELS)
def test_an_output_that_cannot_be_settled(model: str, wrong: str) -> None:
    driver = busy(*MODELS[model], 2)
    output = driver.scheduler.schedule()
    sampled: dict[str, Any] = {item.request.request_id: 3 for item in output.scheduled if item.samples}
    last = list(sampled)[-1]
    if wrong == "missing":
        del sampled[last]
    else:
        sampled[last] = "x"
    with pytest.raises((KeyError, TypeError, ValueError)):
        driver.scheduler.update_from_output(output, sampled)
    driver.check_failed()
    driver.finish()


def test_failures_anywhere_in_long_traffic() -> None:
    for seed in range(12):
        rng = Random(seed)
        model = rng.choice(list(MODELS))
        specs, unit = MODELS[model]
        driver = Driver(
            cache_of(specs, unit, num_blocks=40 * len(specs)), max_batched_tokens=rng.choice((8, 24, 60))
        )
        for i in range(60):
            if rng.random() < 0.4:
                driver.submit(f"r{i}", rng.choice((0, 0, 500, 1000 * i)), rng.randint(1, 40), rng.randint(1, 12))
            if rng.random() < 0.2:
                driver.cache.fail_at(rng.randint(1, 3), MistakeError(), rng.random() < 0.5)
            try:
                output = driver.scheduler.schedule()
            except MistakeError:
                driver.check_failed()
                continue
            if rng.random() < 0.2:
                driver.scheduler.discard_output(output)
                driver.check_failed()
            else:
                driver.settle(output)
        driver.cache.fail_at(0, MistakeError(), False)
        driver.finish()


def test_a_request_that_can_never_fit_costs_the_others_nothing_that_was_written() -> None:
    driver = Driver(cache_of((FULL,), num_blocks=12))
    driver.submit("fits", 0, 20)
    driver.submit("large", 500, 60)
    del driver.requests["large"]
    with pytest.raises(CapacityError):
        driver.steps(40)
    driver.check()
    driver.submit("large", 500, 20)
    driver.finish()


# ---- ids


def test_two_requests_of_one_id_are_refused() -> None:
    driver = busy((FULL,), None, 1)
    for name in ("r0", "r4"):
        with pytest.raises(ValueError, match=f"request id '{name}' is taken by an unfinished request"):
            driver.scheduler.add_request(Request(name, range(9), hasher=driver.cache.hasher))
        with pytest.raises(ValueError, match="is taken"):
            driver.scheduler.add_request(driver.requests[name])
    driver.finish()


def test_an_id_may_be_used_again_once_its_request_has_ended() -> None:
    driver = busy((FULL,), None, 1)
    driver.scheduler.abort("r0")
    driver.scheduler.abort("r0")
    driver.submit("r0", 40, 5)
    driver.finish()
    driver.submit("r0", 40, 5)
    driver.finish()


# ---- the call itself


@pytest.mark.parametrize("private", [None, 60])
@pytest.mark.parametrize("model", MODELS)
def test_a_discarded_step_keeps_the_keys_of_earlier_ones(model: str, private: int | None) -> None:
    specs, unit = MODELS[model]
    cache = cache_of(specs, unit, private=private)
    first, second = (
        Request(name, range(first, first + 13), hasher=cache.hasher) for name, first in (("a", 0), ("b", 99))
    )
    cache.new_step_starts()
    assert cache.allocate_slots(first, 12) is not None
    cache.new_step_starts()
    before = keys_in_pools(cache)
    assert all(before)
    assert cache.allocate_slots(second, 12) is not None
    assert keys_in_pools(cache) != before
    cache.discard_step()
    assert keys_in_pools(cache) == before
    check_invariants(cache)


def test_a_moved_key_is_dropped_since_its_copy_was_not_made() -> None:
    cache = cache_of(WIDE, 4)
    writer = Request("a", range(13), hasher=cache.hasher)
    for new in (12, 1):
        cache.new_step_starts()
        assert cache.allocate_slots(writer, new) is not None
        writer.num_computed_tokens += new
    assert cache.take_copies()
    cache.discard_step()
    cache.release_copies()
    cache.free(writer)
    cache.new_step_starts()
    assert cache.get_computed_blocks(Request("b", range(13), hasher=cache.hasher)).num_tokens == 0


@pytest.mark.parametrize("starts", [True, False])
def test_a_step_of_any_length_is_discarded(starts: bool) -> None:
    """Also by a caller who never told where steps begin; what is noted stays bounded."""
    cache = cache_of((FULL,), num_blocks=4000)
    if starts:
        cache.new_step_starts()
    for i in range(3 * MANY):
        request = Request(f"r{i}", range(10 * i, 10 * i + 5), hasher=cache.hasher)
        assert cache.allocate_slots(request, 5) is not None
        assert len(cache.block_pool.keys.noted) <= MANY
    assert len(keys_in_pools(cache)[0]) == 3 * MANY
    cache.discard_step()
    assert not keys_in_pools(cache)[0]


def test_a_recorded_failure_plays_again(tmp_path: Path) -> None:
    path = tmp_path / "failed.jsonl"
    groups = tuple(KVCacheGroup(f"g{g}", spec) for g, spec in enumerate((FULL, WINDOW)))
    with Recorder(path) as recorder:
        cache = recorder.manager(KVCacheConfig(groups, 100), max_model_len=200)
        driver = Driver(cache)
        for i in range(3):
            driver.submit(f"r{i}", 0, 20 + i)
        driver.scheduler.discard_output(driver.scheduler.schedule())
        while driver.scheduler.has_unfinished:
            driver.step()
    assert '"evict"' in path.read_text()
    assert main(["scenario", str(path)]) == 0


def test_a_recorded_request_without_a_result_plays_again(tmp_path: Path) -> None:
    path = tmp_path / "failed.jsonl"
    with Recorder(path) as recorder:
        cache = recorder.manager(KVCacheConfig((KVCacheGroup("full", FULL),), 100), max_model_len=200)
        driver = Driver(cache)
        for name in ("good", "bad"):
            driver.submit(name, 0 if name == "good" else 500, 20)
        driver.scheduler.update_from_output(driver.scheduler.schedule(), {"good": 3}, failed=["bad"])
        again = Request("again", range(500, 520), hasher=cache.hasher)
        assert cache.get_computed_blocks(again).num_tokens == 0
        while driver.scheduler.has_unfinished:
            driver.step()
    assert '"evict"' in path.read_text()
    assert main(["scenario", str(path)]) == 0
