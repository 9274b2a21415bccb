"""Whether the sides decided the same, request by request."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from runs.speed.side import Run, Runs

INDEPENDENT = ("sglang", "sglang core")
"""Sides with an eviction order of their own, which need not agree."""
KNOWN = {
    "scheduler:": "vLLM counts up to one block too many for an admission, so that a request can wait longer",
}
"""By the start of a work's name, a known fault that makes the peer answer differently. It is reported and is no
failure, provided that it changes at most `FEW` of the decisions."""
FEW = 0.02
"""The share of decisions that a known fault may change."""


def excuse(difference: str) -> str | None:
    """The known fault that explains one of the `differences`, or None."""
    counts = re.search(r"(\d+) of (\d+) decisions differ", difference)
    if counts is None or int(counts[1]) > FEW * int(counts[2]):
        return None
    return next((reason for start, reason in KNOWN.items() if difference.startswith(start)), None)


def differences(runs: Runs, own: str = "ours") -> list[str]:
    """One line for each run of a side that decided differently from side ``own`` in the same round."""
    found: list[str] = []
    for (side, work), theirs in runs.items():
        ours = runs.get((own, work), [])
        if side == own or side in INDEPENDENT:
            continue
        for number, (run, other) in enumerate(zip(ours, theirs, strict=False), 1):
            found += [f"{work}, {side}, run {number}: {line}" for line in _compared(run, other)]
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
