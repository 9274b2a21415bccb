"""The results as a table in Markdown and as JSON."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from runs.speed.agreement import excuse
from runs.speed.comparisons import Comparison
from runs.speed.pairs import Ratio, Runs
from runs.speed.straight import Line


@dataclass(frozen=True)
class Results:
    """All that one call of the benchmark found."""

    ratios: Sequence[Ratio]
    lines: Sequence[Line]
    versions: Mapping[str, str]
    """By side."""
    skipped: Sequence[str]
    """Peers that are not there, and why."""
    differences: Sequence[str]
    """Where a side decided otherwise than ours."""
    requests: int
    """Requests of the trace in the works (a)."""
    scheduled: int
    """Requests that went through the schedulers."""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _wanted(comparison: Comparison) -> str:
    if comparison.threshold is None:
        return ""
    aim = f" ({comparison.aim:g})" if comparison.aim else ""
    return f"{comparison.threshold:g}{aim}"


def _row(ratio: Ratio) -> str:
    reached = {None: "", True: "yes", False: "**no**"}[ratio.reached]
    low, middle, high = min(ratio.values), ratio.median, max(ratio.values)
    cells = (
        ratio.comparison.label,
        _number(ratio.ours),
        _number(ratio.peer),
        f"{low:.1f}",
        f"**{middle:.1f}**",
        f"{high:.1f}",
        str(len(ratio.values)),
        _wanted(ratio.comparison),
        reached,
    )
    return f"| {' | '.join(cells)} |"


def markdown(results: Results) -> str:
    """The table as it is committed."""
    packages = "; ".join(dict.fromkeys(results.versions.values()))
    parts = [
        f"Time of the peer by time of kvhybrid, in {_pairs(results)} pairs of alternating runs. {date.today()}, "
        f"Python {platform.python_version()}, {platform.machine()}; {packages}. "
        f"(a): {results.requests:,} requests; scheduler: {results.scheduled:,}.",
        "",
        "| work | ours, µs | peer, µs | least | median | most | pairs | wanted (aim) | reached |",
        "|---" * 9 + "|",
        *map(_row, results.ratios),
        "",
        "µs are for one block (a, hashing, cold admission, hit, free), one look-up (misses, worst order), one "
        "request's step (c) or one request (scheduler); the rows on memory have bytes a block.",
    ]
    if results.lines:
        parts += [
            "",
            "Straight lines: what one unit costs, from the smallest size to the largest.",
            "",
            "| work | side | sizes | cost of one unit, µs | largest by smallest |",
            "|---|---|---|---|---|",
        ]
        parts += [line.row() for line in results.lines]
    parts += ["", *(f"- Skipped: {reason}." for reason in results.skipped)]
    parts += [
        f"- Decided differently: {line} ({excuse(line) or 'nothing explains it'})." for line in results.differences
    ]
    if not results.differences and any(ratio.comparison.peer == "vllm" for ratio in results.ratios):
        parts.append("- Hits, junctions and refusals were equal to vLLM's in every run, request by request.")
    return "\n".join(parts) + "\n"


def _pairs(results: Results) -> str:
    counts = sorted({len(ratio.values) for ratio in results.ratios})
    return " or ".join(map(str, counts)) or "no"


def as_json(results: Results, runs: Runs) -> dict[str, Any]:
    """Everything, with every single run."""
    return {
        "date": str(date.today()),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "versions": dict(results.versions),
        "requests": results.requests,
        "scheduled_requests": results.scheduled,
        "ratios": [
            {
                "work": ratio.comparison.label,
                "peer": ratio.comparison.peer,
                "ours_us": ratio.ours,
                "peer_us": ratio.peer,
                "min": min(ratio.values),
                "median": ratio.median,
                "max": max(ratio.values),
                "values": ratio.values,
                "threshold": ratio.comparison.threshold,
                "aim": ratio.comparison.aim,
                "reached": ratio.reached,
            }
            for ratio in results.ratios
        ],
        "lines": [line.as_json() for line in results.lines],
        "seconds": [
            {"side": side, "work": work, "seconds": [run.seconds for run in found], "units": found[0].units}
            for (side, work), found in runs.items()
            if found
        ],
        "skipped": list(results.skipped),
        "differences": list(results.differences),
    }
