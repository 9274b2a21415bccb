"""Every feature at once, called in any order: blocks, contents and records stay right.

The short form draws the same examples in every run. The long one takes ten minutes:
``pytest -m long tests/kvhybrid/cache/test_state_machine.py -s``.
"""

from __future__ import annotations

import time
from collections import Counter
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

from tests.kvhybrid.cache.pools import PooledTraffic
from tests.kvhybrid.cache.setups import Features, features

NUMBERS = st.integers(0, 999)
LONG_SECONDS = 600


class EveryFeature(RuleBasedStateMachine):
    """A scheduler that does what it likes to a cache manager of one to four groups.

    `PooledTraffic.call` checks invariants, causes, events and residency after each call.
    """

    seen: ClassVar[Counter[str]] = Counter()
    """In how many examples each thing happened."""
    examples: ClassVar[int] = 0
    traffic: PooledTraffic | None = None

    @initialize(setup=features())
    def build(self, setup: Features) -> None:
        EveryFeature.examples += 1
        self.traffic = PooledTraffic(setup.build())

    def call(self, kind: str, a: int, b: int) -> None:
        assert self.traffic is not None
        self.traffic.call(kind, a, b)

    @rule(a=NUMBERS, b=NUMBERS)
    def submit(self, a: int, b: int) -> None:
        self.call("submit", a, b)

    @rule(a=NUMBERS, b=NUMBERS, c=NUMBERS, d=NUMBERS, steps=st.integers(0, 6))
    def serve(self, a: int, b: int, c: int, d: int, steps: int) -> None:
        """A request comes and runs for some steps of its own; others may have joined the first of them."""
        self.call("submit", a, b)
        self.call("admit", c, d)
        for i in range(steps):
            self.call("end_step", c + i, d)
            self.call("run", c, d + i)

    @precondition(lambda self: self.traffic and self.traffic.history)
    @rule(c=NUMBERS, d=NUMBERS, finish=st.booleans())
    def resend(self, c: int, d: int, finish: bool) -> None:
        """The whole of an old prompt again, or half of it and new tokens."""
        self.call("submit", 3 + 4 * c if c % 2 else 2 + 4 * c, 7 if d % 2 else 3)
        self.call("admit", 997 * c, d)
        if finish:
            self.call("finish", c, d)

    @precondition(lambda self: self.traffic and self.traffic.waiting)
    @rule(a=NUMBERS, b=NUMBERS)
    def admit(self, a: int, b: int) -> None:
        """Look up, adopt, load from outside, and take slots: or be refused."""
        self.call("admit", a, b)

    @precondition(lambda self: self.traffic and self.traffic.running)
    @rule(a=NUMBERS, b=NUMBERS)
    def run(self, a: int, b: int) -> None:
        """The next chunk or token, with drafts and look-ahead."""
        self.call("run", a, b)

    @precondition(lambda self: self.traffic and self.traffic.step)
    @rule(a=NUMBERS, b=NUMBERS)
    def end_step(self, a: int, b: int) -> None:
        """Copies, loads, writes, reads; drafts are rejected, tokens sampled or kept in flight."""
        self.call("end_step", a, b)

    @precondition(lambda self: self.traffic and self.traffic.running)
    @rule(a=NUMBERS)
    def decode(self, a: int) -> None:
        """A few whole steps of one sequence after the other."""
        for i in range(3):
            self.call("run", a + i, 39)
            self.call("end_step", a, a)

    @precondition(lambda self: self.traffic and self.traffic.running)
    @rule(a=NUMBERS)
    def finish(self, a: int) -> None:
        self.call("finish", a, 0)

    @precondition(lambda self: self.traffic and self.traffic.running)
    @rule(a=NUMBERS)
    def preempt(self, a: int) -> None:
        self.call("preempt", a, 0)

    @precondition(lambda self: self.traffic and self.traffic.loading)
    @rule(a=NUMBERS)
    def load(self, a: int) -> None:
        """A delayed load ends: what it brought gets its keys."""
        self.call("load", a, 0)

    @precondition(lambda self: self.traffic)
    @rule(a=NUMBERS, b=NUMBERS)
    def evict(self, a: int, b: int) -> None:
        self.call("evict", a, b)

    @precondition(lambda self: self.traffic)
    @rule()
    def reset(self) -> None:
        self.call("reset", 0, 0)

    def teardown(self) -> None:
        if self.traffic is not None:
            self.traffic.wind_up()
            EveryFeature.seen.update(self.traffic.seen)


def test_any_order_of_calls_with_every_feature() -> None:
    EveryFeature.seen.clear()
    run_state_machine_as_test(
        EveryFeature, settings=settings(max_examples=50, stateful_step_count=30, derandomize=True)
    )
    assert EveryFeature.seen["hit"]
    assert EveryFeature.seen["refused waiting"]


@pytest.mark.long
def test_ten_minutes_of_any_order_of_calls_with_every_feature() -> None:
    EveryFeature.seen.clear()
    EveryFeature.examples = 0
    start = time.monotonic()
    while time.monotonic() - start < LONG_SECONDS:
        run_state_machine_as_test(
            EveryFeature,
            settings=settings(max_examples=200, stateful_step_count=60, derandomize=False, database=None),
        )
    print(f"\n{EveryFeature.examples} examples in {time.monotonic() - start:.0f} s; {dict(EveryFeature.seen)}")
