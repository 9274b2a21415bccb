"""Which works are run, how large, how often, and by which sides; and how the sides take turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from runs.speed.catalogue import POOLS, WORKS
from runs.speed.comparisons import COMPARISONS
from runs.speed.side import Run, Runs
from runs.speed.works import MODELS, Size

WHOLE_TRACE = 12_031
"""Requests of the conversation trace."""
COMPARED = tuple(f"a:{model}" for model in MODELS)
"""The works whose evictions are compared."""
SHORT = ("a:prompts", "b:", "c:", "d:")
"""Works, by the starts of their names, whose runs take hundredths of a second, so that each is easily disturbed:
they get three times the pairs."""
LARGEST_PEER_POOL = 1_000_000
"""Blocks. vLLM keeps an object for each, which takes gigabytes beyond this."""


@dataclass(frozen=True)
class Step:
    """One work."""

    work: str
    size: Size
    rounds: int
    sides: tuple[str, ...]
    counts: bool = True
    """Whether its times go into the table; otherwise it only compares decisions."""


@dataclass(frozen=True)
class Plan:
    """All works, in order."""

    steps: tuple[Step, ...]
    requests: tuple[int, int]
    """Of the trace in the works (a), and through the schedulers."""

    def only(self, starts: Sequence[str]) -> Plan:
        """The works whose names start with one of these."""
        return replace(self, steps=tuple(step for step in self.steps if step.work.startswith(tuple(starts))))

    @property
    def sides(self) -> tuple[str, ...]:
        """All that take part, ours first."""
        return tuple(dict.fromkeys(side for step in self.steps for side in step.sides))


def full_plan(trace: str) -> Plan:
    """What is committed: 7 pairs or more, the whole trace through the schedulers; half an hour with both peers."""
    return _plan(Size(trace=trace), rounds=7, scheduled=WHOLE_TRACE, pools=POOLS)


def quick_plan(trace: str) -> Plan:
    """3 pairs or more on 60 requests and shorter prompts: whether everything works, and the order of size."""
    return _plan(
        Size(trace=trace, requests=60, repeats=3, batch=64, parts=3, pool_blocks=100_000),
        rounds=3,
        scheduled=60,
        pools=POOLS[:2],
    )


def _plan(size: Size, rounds: int, scheduled: int, pools: Sequence[int]) -> Plan:
    wanted = [used for comparison in COMPARISONS for used in sorted(comparison.works)]
    steps: list[Step] = []
    for work in WORKS:
        if work.startswith("e:pool:") and int(work.split(":")[-1]) not in pools:
            continue
        mine = size
        if work.startswith("scheduler"):
            mine = replace(size, requests=scheduled, parts=rounds)
        pairs = 3 * rounds if work.startswith(SHORT) else rounds
        steps.append(Step(work, mine, pairs, _sides(work, wanted)))
        if work in COMPARED:
            # Once, to compare evictions: counting them takes vLLM's events, which would cost it time above.
            steps.append(Step(work, size, 1, ("ours", "vllm, events"), counts=False))
    return Plan(tuple(steps), (size.requests, scheduled))


def _sides(work: str, wanted: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    if work.startswith("e:"):
        large = work.startswith("e:pool:") and int(work.split(":")[-1]) > LARGEST_PEER_POOL
        return ("ours",) if large else ("ours", "vllm")
    used = dict.fromkeys(side for side, of in wanted if of == work)
    return tuple(sorted(used, key=lambda side: not side.startswith("ours")))


class Runner(Protocol):
    """A side as `take_turns` sees it: a worker, or a stand-in."""

    def open(self, work: str, size: Size) -> None: ...

    def run(self) -> Run: ...

    def close(self) -> None: ...


def take_turns(
    work: str, sides: Mapping[str, Runner], size: Size, rounds: int, tell: Callable[[str], None]
) -> Runs:
    """``rounds`` runs of ``work`` by every side in alternation, so that whatever slows the machine down for a
    while slows all of them. The side that began a round ends the next. Repeatable works have one uncounted run.
    """
    for side in sides.values():
        side.open(work, size)
    if not work.startswith("scheduler"):
        for side in sides.values():
            side.run()
    found: Runs = {(name, work): [] for name in sides}
    order = list(sides)
    for number in range(rounds):
        for name in order:
            found[name, work].append(sides[name].run())
        order.reverse()
        tell(f"{work}: {number + 1} of {rounds}")
    for side in sides.values():
        side.close()
    return found
