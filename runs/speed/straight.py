"""Works of one kind in several sizes: whether what one unit costs stays the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from runs.speed.catalogue import CUTS, POOLS, PROMPTS
from runs.speed.pairs import Runs
from runs.speed.side import Run

SERIES = (
    ("worst order, look-up by blocks of the prompt", "d:{}", "hit", CUTS, True),
    ("cold admission by blocks of the prompt", "e:prompt:{}", "admit", PROMPTS, False),
    ("full hit by blocks of the prompt", "e:prompt:{}", "hit", PROMPTS, False),
    ("free by blocks of the prompt", "e:prompt:{}", "free", PROMPTS, False),
    ("building a pool by its blocks", "e:pool:{}", "build", POOLS, False),
    ("a prompt in a full pool by the pool's blocks", "e:pool:{}", "prompt", POOLS, False),
)
"""What it says, the works and their part, the sizes, and whether a unit of the work is the whole size."""


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

    def row(self) -> str:
        sizes = ", ".join(f"{size:,}" for size in self.sizes)
        costs = ", ".join(f"{cost:.3g}" for cost in self.costs)
        return f"| {self.label} | {self.side} | {sizes} | {costs} | {self.growth:.2f} |"

    def as_json(self) -> dict[str, Any]:
        return {"work": self.label, "side": self.side, "sizes": self.sizes, "us": self.costs}


def lines(runs: Runs, sides: Sequence[str] = ("ours", "vllm")) -> list[Line]:
    """One for each series and side, over the sizes that were run; none where there is just one."""
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
