"""``curve.png``: the hit rate against the size of the pool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvhybrid.report.plot import COLOURS, INK, PALE, draw_figure


def plot_curve(num_blocks: Sequence[int], hit_rates: Sequence[float | None], title: str, place: Path) -> None:
    """Write the curve to ``place`` as PNG. Sizes without a hit rate are left out."""
    points = [(size, 100 * rate) for size, rate in zip(num_blocks, hit_rates, strict=True) if rate is not None]
    with draw_figure(place, size=(8, 5)) as figure:
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        axes.plot(*zip(*points, strict=True), color=COLOURS[0], marker="o", markersize=4) if points else None
        axes.set_xscale("log")
        axes.set_ylim(0)
        axes.grid(axis="y", color=PALE, linewidth=0.6)
        axes.set_xlabel("blocks of the pool", color=INK)
        axes.set_ylabel("hit rate, %", color=INK)
        figure.suptitle(f"{title}: hit rate by pool size", color=INK)
