"""The rows of the tables: what is compared with what and the wanted ratio, and works of one kind over sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from runs.speed.catalogue import CUTS, POOLS, PROMPTS
from runs.speed.side import Run, Runs
from runs.speed.works import MODELS

NAMES = {"llama": "one full group", "gemma3": "Gemma-3-27B", "jamba": "Jamba", "llama4": "Llama-4"}
TRAFFIC = {"llama": (14, 30), "gemma3": (18, 40), "jamba": (9, 20), "llama4": (14, 30)}
"""Threshold and aim of the trace, by model."""


@dataclass(frozen=True)
class Comparison:
    """A row of the table: time of the peer divided by time of ours, pair by pair."""

    label: str
    parts: tuple[str, ...]
    """What is timed: names of works and their parts, which are added up."""
    threshold: float | None = None
    """What the median must reach; None if nothing was promised."""
    aim: float | None = None
    ours: str = "ours"
    peer: str = "vllm"
    peer_parts: tuple[str, ...] = ()
    """What is timed in the peer, if it differs."""

    @property
    def theirs(self) -> tuple[str, ...]:
        return self.peer_parts or self.parts

    @property
    def works(self) -> set[tuple[str, str]]:
        """(side, work) of every work that it needs."""
        return {
            *((self.ours, part.split("/")[0]) for part in self.parts),
            *((self.peer, part.split("/")[0]) for part in self.theirs),
        }


def _traffic() -> list[Comparison]:
    rows: list[Comparison] = []
    for model in MODELS:
        label, part, (threshold, aim) = f"(a) trace, {NAMES[model]}", f"a:{model}/all", TRAFFIC[model]
        rows += [
            Comparison(label, (part,), threshold, aim),
            Comparison(f"{label}, causes and events on", (part,), threshold / 2, aim / 2, ours="ours, all on"),
            Comparison(f"{label}, hashing counted", (part, "a:hashing/hash")),
        ]
    return rows


COMPARISONS = (
    *_traffic(),
    Comparison("(b) hashing 131,072 tokens", ("b:hashing/hash",), 3),
    Comparison("(b) miss, window group, first look-up", ("b:miss-window/first",), 50),
    Comparison("(b) miss, window group, looked up again", ("b:miss-window/again",)),
    Comparison("(b) miss, state group, first look-up", ("b:miss-state/first",), 50),
    Comparison("(b) miss, state group, looked up again", ("b:miss-state/again",)),
    Comparison("(b) cold admission of 8,192 blocks", ("b:prompt/admit",), 20),
    Comparison("(b) full hit found", ("b:prompt/hit",), 40),
    Comparison("(b) free", ("b:prompt/free",), 8),
    Comparison("(c) decode step, 1 group", ("c:1/step",), 8),
    Comparison("(c) decode step, 7 groups", ("c:7/step",), 10),
    Comparison("(d) worst order, 2,048 blocks", ("d:2048/hit",)),
    Comparison("(d) worst order, 4,096 blocks", ("d:4096/hit",)),
    Comparison("(d) worst order, 8,192 blocks", ("d:8192/hit",), 8),
    Comparison("scheduler, whole trace, Gemma-3-27B", ("scheduler:gemma3/request",), 12),
    Comparison("memory per block of an empty pool, Gemma-3-27B", ("memory/resident",), 10),
    Comparison("memory per block once every page is written to", ("memory/promised",)),
    Comparison("SGLang's radix tree in Python, prompts of the trace", ("a:prompts/all",), 6, peer="sglang"),
    Comparison("SGLang's compiled core, prompts of the trace", ("a:prompts/all",), 1, 2, peer="sglang core"),
    Comparison(
        "SGLang's compiled core, our hashing counted",
        ("a:prompts/all", "a:hashing/hash"),
        peer="sglang core",
        peer_parts=("a:prompts/all",),
    ),
)


# ---- what was found


@dataclass(frozen=True)
class Ratio:
    """Time of the peer divided by time of ours, over all pairs."""

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
    """One for each comparison whose works were run."""
    return [_ratio(c, runs) for c in comparisons if all(key in runs for key in c.works)]


def _ratio(comparison: Comparison, runs: Runs) -> Ratio:
    ours = _added(comparison.ours, comparison.parts, runs)
    peer = _added(comparison.peer, comparison.theirs, runs)
    first = runs[comparison.ours, comparison.parts[0].split("/")[0]][0]
    units = first.units[comparison.parts[0].split("/")[1]]
    scale = scale_of(comparison.parts[0]) / units
    values = tuple(theirs / own for own, theirs in zip(ours, peer, strict=False))
    return Ratio(comparison, values, scale * median(ours), scale * median(peer))


def scale_of(work: str) -> float:
    """From a run's seconds to microseconds; the work on memory has bytes, which stay."""
    return 1 if work.startswith("memory") else 1e6


def _added(side: str, parts: Sequence[str], runs: Runs) -> list[float]:
    """The seconds of the parts together, round by round; some works have more rounds than others."""
    split = [part.split("/") for part in parts]
    columns = [[run.seconds[name] for run in runs[side, work]] for work, name in split]
    return [sum(row) for row in zip(*columns, strict=False)]


# ---- over sizes


SERIES = (
    ("worst order, look-up by blocks of the prompt", "d:{}", "hit", CUTS, True),
    ("cold admission by blocks of the prompt", "e:prompt:{}", "admit", PROMPTS, False),
    ("full hit by blocks of the prompt", "e:prompt:{}", "hit", PROMPTS, False),
    ("free by blocks of the prompt", "e:prompt:{}", "free", PROMPTS, False),
    ("building a pool by its blocks", "e:pool:{}", "build", POOLS, False),
    ("a prompt in a full pool by the pool's blocks", "e:pool:{}", "prompt", POOLS, False),
)
"""Label, works and their part, sizes, and whether one unit of the work is the whole size."""


@dataclass(frozen=True)
class Line:
    """What one unit costs at each size."""

    label: str
    side: str
    sizes: tuple[int, ...]
    costs: tuple[float, ...]
    """Microseconds."""

    @property
    def growth(self) -> float:
        """Cost at the largest size by cost at the smallest: 1 is a straight line through the origin."""
        return self.costs[-1] / self.costs[0]


def lines(runs: Runs, sides: Sequence[str] = ("ours", "vllm")) -> list[Line]:
    """One for each series and side over the sizes that were run, if there are two or more."""
    found: list[Line] = []
    for label, work, part, sizes, whole in SERIES:
        for side in sides:
            points = [
                (size, _cost(runs[side, work.format(size)], part) / (size if whole else 1))
                for size in sizes
                if runs.get((side, work.format(size)))
            ]
            if len(points) > 1:
                found.append(Line(label, side, *(tuple(column) for column in zip(*points, strict=True))))
    return found


def _cost(runs: Sequence[Run], part: str) -> float:
    return 1e6 * median(run.seconds[part] / run.units[part] for run in runs)
