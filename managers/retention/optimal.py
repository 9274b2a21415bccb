"""The best places for a given number of states, if one knows where prompts part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from kvhybrid.managers.retention.base import RetainedRequest, Retention


@dataclass(frozen=True)
class Optimal(Retention):
    """``states`` on every prompt, where they save the most tokens on average (arXiv 2605.05219).

    ``parts`` says where later prompts part from this one: the shares of prompts that do so in the first, second, …
    of equally long pieces of it. By default, they part anywhere with the same probability. The junction is kept as
    well.
    """

    states: int = 4
    parts: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if self.states < 1:
            raise ValueError(f"retention.states must be at least 1, found {self.states}")
        if not self.parts or min(self.parts) < 0 or not 0 < sum(self.parts) < float("inf"):
            raise ValueError(f"retention.parts must be shares of which one is positive, found {list(self.parts)}")

    def positions(self, request: RetainedRequest, start: int, end: int, alignment: int, margin: int) -> list[int]:
        junction = request.shared_prefix_boundary // alignment * alignment
        return [*self.stops(request, alignment), *([junction] if junction else ())]

    def stops(self, request: RetainedRequest, block: int) -> Sequence[int]:
        boundaries = (request.num_prompt_tokens - 1) // block
        return [place * block for place in _places(self.parts, boundaries, self.states)]


@lru_cache(maxsize=1024)
def _places(parts: tuple[float, ...], boundaries: int, states: int) -> tuple[int, ...]:
    """`placement` on a prompt with this many block boundaries; every step of the prompt asks for it."""
    return placement(spread(parts, boundaries), states)


def spread(parts: Sequence[float], count: int) -> list[float]:
    """The share of prompts that part after boundary 1, 2, … ``count`` and before the next one."""
    edges = [k * len(parts) / (count + 1) for k in range(1, count + 2)]
    before = [_mass(parts, edge) for edge in edges]
    return [after - here for here, after in pairwise(before)]


def _mass(parts: Sequence[float], edge: float) -> float:
    """The share of prompts that part before ``edge``, in pieces."""
    whole = min(int(edge), len(parts))
    rest = (edge - whole) * parts[whole] if whole < len(parts) else 0.0
    return (sum(parts[:whole]) + rest) / sum(parts)


def placement(weights: Sequence[float], states: int) -> tuple[int, ...]:
    """The ``states`` boundaries, ascending, that save the most.

    A prompt that parts after boundary ``d`` and before the next resumes at the last chosen boundary up to ``d``.
    Boundary ``d`` (from 1) has weight ``weights[d - 1]``. It takes O(states × boundaries): for each number of
    states, the best boundary before another one is found on the upper hull of lines.
    """
    count = len(weights)
    below = [0.0]
    """``below[j]``: the weight of the boundaries before boundary ``j + 1``."""
    for weight in weights:
        below.append(below[-1] + weight)
    best = [0.0] * (count + 2)
    """By boundary ``j``, the most that boundaries before ``j`` save if the last chosen one is ``j``."""
    came_from: list[list[int]] = []
    for _ in range(min(states, count)):
        best, origin = _next(best, below, first=not came_from)
        came_from.append(origin)
    chosen: list[int] = []
    if came_from:
        at = max(range(1, count + 1), key=lambda j: (best[j] + j * (below[count] - below[j - 1]), -j))
        for origin in reversed(came_from):
            chosen.append(at)
            at = origin[at]
    return tuple(sorted(place for place in chosen if place))


def _next(best: Sequence[float], below: Sequence[float], first: bool) -> tuple[list[float], list[int]]:
    """`best` with one more boundary chosen, and for each last boundary the one chosen before it, 0 for none.

    With ``i`` chosen before ``j``, the boundaries between them save ``i`` each: best[i] − i · below[i − 1] plus
    i · below[j − 1], a line in below[j − 1]. Slopes and places both ascend, so each line joins and leaves the hull
    once.
    """
    count = len(below) - 1
    found, origin = [0.0] * (count + 2), [0] * (count + 2)
    if first:
        return found, origin
    hull: list[tuple[int, float]] = [(0, 0.0)]
    front = 0
    for j in range(1, count + 1):
        x = below[j - 1]
        while (
            front + 1 < len(hull)
            and hull[front + 1][0] * x + hull[front + 1][1] >= hull[front][0] * x + hull[front][1]
        ):
            front += 1
        found[j], origin[j] = _at(hull[front], x), hull[front][0]
        line = (j, best[j] - j * below[j - 1])
        while len(hull) - front > 1 and _is_hidden(hull[-2], hull[-1], line):
            hull.pop()
        hull.append(line)
    return found, origin


def _at(line: tuple[int, float], x: float) -> float:
    return line[0] * x + line[1]


def _is_hidden(low: tuple[int, float], middle: tuple[int, float], high: tuple[int, float]) -> bool:
    """Whether ``middle`` is nowhere above both other lines."""
    return (high[1] - low[1]) * (middle[0] - low[0]) >= (middle[1] - low[1]) * (high[0] - low[0])
