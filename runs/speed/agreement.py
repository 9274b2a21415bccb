"""Whether the sides decided the same, request by request."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from runs.speed.pairs import Runs
from runs.speed.side import Run

INDEPENDENT = ("sglang", "sglang core")
"""Sides with an order of reuse of their own: they may evict something else."""
KNOWN = {
    "scheduler:": "vLLM counts up to one block too many for an admission, so that a request can wait longer",
}
"""By the start of a work's name, what may make the peer answer otherwise: it is told and is no failure, as long as
it happens to `FEW`."""
FEW = 0.02
"""The share of decisions that a known fault may change."""


def excuse(difference: str) -> str | None:
    """What is known about one of the `differences`, if anything is and explains so many of them."""
    counts = re.search(r"(\d+) of (\d+) decisions differ", difference)
    if counts is None or int(counts[1]) > FEW * int(counts[2]):
        return None
    return next((reason for start, reason in KNOWN.items() if difference.startswith(start)), None)


def differences(runs: Runs) -> list[str]:
    """One line for each run of a side that decided otherwise than ours in the same round."""
    found: list[str] = []
    for (side, work), theirs in runs.items():
        ours = runs.get(("ours", work), [])
        if side == "ours" or side in INDEPENDENT:
            continue
        for number, (own, other) in enumerate(zip(ours, theirs, strict=False), 1):
            found += [f"{work}, {side}, run {number}: {line}" for line in _compared(own, other)]
    return found


def _compared(own: Run, other: Run) -> Iterable[str]:
    if own.decisions != other.decisions:
        yield _first_difference(own.decisions, other.decisions)
    if own.evictions is not None and other.evictions is not None and own.evictions != other.evictions:
        yield f"evictions per group: ours {own.evictions}, theirs {other.evictions}"


def _first_difference(own: list[Any], other: list[Any]) -> str:
    if len(own) != len(other):
        return f"ours decided {len(own)} times, theirs {len(other)} times"
    unlike = [place for place, pair in enumerate(zip(own, other, strict=True)) if pair[0] != pair[1]]
    first = unlike[0]
    where = f"{len(unlike)} of {len(own)} decisions differ, first request {first}"
    return f"{where}: {own[first]}, theirs {other[first]}"
