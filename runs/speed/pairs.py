"""Runs in pairs: the sides take turns, so that what slows the machine down for a while slows all of them down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from runs.speed.comparisons import Comparison
from runs.speed.side import Run
from runs.speed.works import Size


class Runner(Protocol):
    """What `Worker` is to this file."""

    def open(self, work: str, size: Size) -> None: ...

    def run(self) -> Run: ...

    def close(self) -> None: ...


Runs = dict[tuple[str, str], list[Run]]
"""By side and work, one run a round."""


def take_turns(work: str, sides: dict[str, Runner], size: Size, rounds: int, tell: Callable[[str], None]) -> Runs:
    """``rounds`` runs of ``work`` by every side, in turns; whoever began a round ends the next one.

    A work that can be repeated is run once before, uncounted."""
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


@dataclass(frozen=True)
class Ratio:
    """Time of the peer by time of ours, over all pairs."""

    comparison: Comparison
    values: tuple[float, ...]
    ours: float
    """Median time of ours for one unit, in microseconds; for memory, bytes."""
    peer: float

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def reached(self) -> bool | None:
        wanted = self.comparison.threshold
        return None if wanted is None else self.median >= wanted


def ratios(comparisons: Iterable[Comparison], runs: Runs) -> list[Ratio]:
    """One for each comparison whose runs are there."""
    return [_ratio(c, runs) for c in comparisons if all(key in runs for key in c.works)]


def _ratio(comparison: Comparison, runs: Runs) -> Ratio:
    ours = _added(comparison.ours, comparison.parts, runs)
    peer = _added(comparison.peer, comparison.theirs, runs)
    first = runs[comparison.ours, comparison.parts[0].split("/")[0]][0]
    units = first.units[comparison.parts[0].split("/")[1]]
    scale = (1 if comparison.parts[0].startswith("memory/") else 1e6) / units
    values = tuple(theirs / own for own, theirs in zip(ours, peer, strict=False))
    return Ratio(comparison, values, scale * median(ours), scale * median(peer))


def _added(side: str, parts: Sequence[str], runs: Runs) -> list[float]:
    """The seconds of the parts together, round by round; some works have more rounds than others."""
    split = [part.split("/") for part in parts]
    columns = [[run.seconds[name] for run in runs[side, work]] for work, name in split]
    return [sum(row) for row in zip(*columns, strict=False)]
