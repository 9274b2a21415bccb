"""The results as tables in Markdown, as JSON and as pictures."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from runs.pictures import figure_of, save
from runs.speed.agreement import excuse
from runs.speed.comparisons import Comparison, Line, Ratio
from runs.speed.side import Runs


@dataclass(frozen=True)
class Results:
    """Everything that one call of the benchmark found."""

    ratios: Sequence[Ratio]
    lines: Sequence[Line]
    versions: Mapping[str, str]
    """By side."""
    skipped: Sequence[str]
    """Peers that did not run, and why."""
    differences: Sequence[str]
    """Where a side decided differently from ours."""
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


def _line_row(line: Line) -> str:
    sizes = ", ".join(f"{size:,}" for size in line.sizes)
    costs = ", ".join(f"{cost:.3g}" for cost in line.costs)
    return f"| {line.label} | {line.side} | {sizes} | {costs} | {line.growth:.2f} |"


def markdown(results: Results) -> str:
    """The table as it is committed."""
    packages = "; ".join(dict.fromkeys(results.versions.values()))
    parts = [
        f"Time of the peer divided by time of kvhybrid, in {_pairs(results)} pairs of alternating runs. "
        f"{date.today()}, Python {platform.python_version()}, {platform.machine()}; {packages}. "
        f"(a): {results.requests:,} requests; scheduler: {results.scheduled:,}.",
        "",
        "| work | ours, µs | peer, µs | least | median | most | pairs | wanted (aim) | reached |",
        "|---" * 9 + "|",
        *map(_row, results.ratios),
        "",
        "µs are for one block (a, hashing, cold admission, hit, free), one look-up (misses, worst order), one "
        "request's step (c) or one request (scheduler); the rows on memory have bytes per block.",
    ]
    if results.lines:
        parts += [
            "",
            "Straight lines: what one unit costs, from the smallest size to the largest.",
            "",
            "| work | side | sizes | cost of one unit, µs | largest by smallest |",
            "|---|---|---|---|---|",
        ]
        parts += map(_line_row, results.lines)
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
        "lines": [
            {"work": line.label, "side": line.side, "sizes": line.sizes, "us": line.costs}
            for line in results.lines
        ],
        "seconds": [
            {"side": side, "work": work, "seconds": [run.seconds for run in found], "units": found[0].units}
            for (side, work), found in runs.items()
            if found
        ],
        "skipped": list(results.skipped),
        "differences": list(results.differences),
    }


# ---- pictures


def plot_ratios(ratios: Sequence[Ratio], path: Path) -> None:
    """Every comparison: all pairs, their median, and the wanted ratio. Writes a PNG."""
    figure, axes = figure_of(figsize=(9, 1.2 + 0.28 * len(ratios)))
    for place, ratio in enumerate(reversed(ratios)):
        color = "tab:red" if ratio.reached is False else "tab:blue"
        axes.plot([min(ratio.values), max(ratio.values)], [place, place], color=color, linewidth=2, alpha=0.5)
        axes.plot(ratio.median, place, "o", color=color, markersize=5)
        if ratio.comparison.threshold:
            axes.plot(ratio.comparison.threshold, place, "|", color="black", markersize=11, markeredgewidth=1.5)
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks(range(len(ratios)), [ratio.comparison.label for ratio in reversed(ratios)], fontsize=7)
    axes.set_xlabel("time of the peer divided by time of kvhybrid; dot: median, line: all pairs, black: wanted")
    axes.grid(axis="x", which="both", alpha=0.25)
    save(figure, path)


def plot_lines(lines: Sequence[Line], path: Path) -> None:
    """The cost of one unit by size, ours and the peer's: level if the whole grows linearly. Writes a PNG."""
    labels = list(dict.fromkeys(line.label for line in lines))
    rows = -(-len(labels) // 3)
    figure, grid = figure_of(rows, 3, figsize=(12, 3.4 * rows), squeeze=False)
    for axes, label in zip(grid.flat, labels, strict=False):
        for line in lines:
            if line.label == label:
                axes.plot(line.sizes, line.costs, "o-", label=line.side)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(label, fontsize=9)
        axes.set_ylabel("µs for one block")
        axes.grid(which="both", alpha=0.25)
        axes.legend(fontsize=8)
    for axes in grid.flat[len(labels) :]:
        axes.remove()
    save(figure, path)
