"""Every feature at once, called in any order: blocks, contents and records stay right.

The short form draws the same examples in every run. The long one takes some minutes:
``pytest -m long tests/kvhybrid/cache/test_state_machine.py -s``.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvhybrid.cache.request import RequestStatus
from kvhybrid.conformance.traffic import Traffic
from tests.kvhybrid.cache.checked_cache import CheckedCache
from tests.kvhybrid.cache.setups import Features, features

SEEDS = st.integers(0, 999)


class EveryFeature(RuleBasedStateMachine):
    """A scheduler that does what it likes to a cache manager of one to four groups.

    `CheckedCache` checks invariants, hits, contents, causes, events and residency after each call.
    """

    seen: ClassVar[Counter[str]] = Counter()
    """In how many examples each thing happened."""
    examples: ClassVar[int] = 0
    cache: CheckedCache
    traffic: Traffic | None = None

    @initialize(setup=features())
    def build(self, setup: Features) -> None:
        EveryFeature.examples += 1
        self.cache = CheckedCache(setup.build())
        self.traffic = Traffic(self.cache, Random(0))

    def act(self, action: str, seed: int) -> None:
        assert self.traffic is not None
        self.traffic.act(action, Random(seed))

    def any(self, status: RequestStatus) -> bool:
        return self.traffic is not None and any(
            request.status is status for request in self.cache.requests.values()
        )

    @rule(seed=SEEDS)
    def submit(self, seed: int) -> None:
        """A new prompt, an old one, or the start of an old one with a new end."""
        self.act("submit", seed)

    @rule(seed=SEEDS, steps=st.integers(0, 6))
    def serve(self, seed: int, steps: int) -> None:
        """A request comes and runs for some steps of its own; others may have joined the first of them."""
        self.act("submit", seed)
        self.act("admit", seed)
        for i in range(steps):
            self.act("new_step", seed)
            self.act("run", seed + i)

    @precondition(lambda self: self.any(RequestStatus.WAITING) or self.any(RequestStatus.PREEMPTED))
    @rule(seed=SEEDS)
    def admit(self, seed: int) -> None:
        """Look up, adopt, load from outside, and take slots: or be refused."""
        self.act("admit", seed)

    @precondition(lambda self: self.any(RequestStatus.RUNNING))
    @rule(seed=SEEDS)
    def run(self, seed: int) -> None:
        """The next chunk or token, with drafts and look-ahead."""
        self.act("run", seed)

    @precondition(lambda self: self.any(RequestStatus.RUNNING))
    @rule(seed=SEEDS)
    def in_flight(self, seed: int) -> None:
        """Tokens of a running request are not settled yet."""
        self.act("in_flight", seed)

    @precondition(lambda self: self.traffic and self.cache.contents.step)
    @rule(seed=SEEDS)
    def new_step(self, seed: int) -> None:
        """Copies, loads, writes, reads; then the next step starts."""
        self.act("new_step", seed)

    @precondition(lambda self: self.any(RequestStatus.RUNNING))
    @rule(seed=SEEDS)
    def decode(self, seed: int) -> None:
        """A few whole steps of one request or another."""
        for i in range(3):
            self.act("run", seed + i)
            self.act("new_step", seed)

    @precondition(lambda self: self.any(RequestStatus.RUNNING))
    @rule(seed=SEEDS)
    def finish(self, seed: int) -> None:
        self.act("finish", seed)

    @precondition(lambda self: self.any(RequestStatus.RUNNING))
    @rule(seed=SEEDS)
    def preempt(self, seed: int) -> None:
        self.act("preempt", seed)

    @precondition(lambda self: self.any(RequestStatus.LOADING))
    @rule(seed=SEEDS)
    def load(self, seed: int) -> None:
        """A delayed load ends: what it brought gets its keys."""
        self.act("load", seed)

    @precondition(lambda self: self.traffic)
    @rule(seed=SEEDS)
    def evict(self, seed: int) -> None:
        self.act("evict", seed)

    @precondition(lambda self: self.traffic)
    @rule()
    def reset(self) -> None:
        self.act("reset", 0)

    def teardown(self) -> None:
        if self.traffic is not None:
            self.traffic.wind_up()
            self.cache.records.check()
            assert not any(self.cache.records.keys)
            EveryFeature.seen.update(self.cache.seen)


def test_any_order_of_calls_with_every_feature() -> None:
    EveryFeature.seen.clear()
    run_state_machine_as_test(
        EveryFeature, settings=settings(max_examples=50, stateful_step_count=30, derandomize=True)
    )
    assert EveryFeature.seen["hit"]
    assert EveryFeature.seen["refused waiting"]


@pytest.mark.long
def test_a_lot_of_any_order_of_calls_with_every_feature() -> None:
    EveryFeature.seen.clear()
    EveryFeature.examples = 0
    run_state_machine_as_test(
        EveryFeature,
        settings=settings(max_examples=3_000, stateful_step_count=60, derandomize=False, database=None),
    )
    print(f"\n{EveryFeature.examples} examples; {dict(EveryFeature.seen)}")
