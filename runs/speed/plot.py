"""The results as pictures: a range and a median for each ratio, and the costs by size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runs.speed.pairs import Ratio
from runs.speed.straight import Line


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def plot_ratios(ratios: Sequence[Ratio], path: Path) -> None:
    """Every comparison beside what was wanted of it. Writes a PNG."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.28 * len(ratios)))
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
    axes.set_xlabel("time of the peer by time of kvhybrid; dot: median, line: all pairs, black: what is wanted")
    axes.grid(axis="x", which="both", alpha=0.25)
    _save(figure, path)


def plot_lines(lines: Sequence[Line], path: Path) -> None:
    """The cost of one unit by size, ours and the peer's: level where the whole is straight. Writes a PNG."""
    pyplot = _pyplot()
    labels = list(dict.fromkeys(line.label for line in lines))
    rows = -(-len(labels) // 3)
    figure, grid = pyplot.subplots(rows, 3, figsize=(12, 3.4 * rows), squeeze=False)
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
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=130, format="png")
    _pyplot().close(figure)
