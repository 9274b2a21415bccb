"""What a smaller attention window saves in blocks, and what it costs in bits per byte: a sweep over windows.

Runs ``kvhybrid run experiment=quality`` and writes table.md and plot.png.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from datetime import date, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kvhybrid.cli import main as kvhybrid
from kvhybrid.run_folder import RunFolder
from runs.pictures import figure_of, read_table, save

HERE = Path(__file__).parent
HEADINGS = ("window", "bits per byte", "blocks a request", "requests at once", "hit rate", "evictions")


def row(folder: Path) -> tuple[str, ...]:
    """The results of one job."""
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    changed = dict(override.split("=", 1) for override in summary["overrides"])
    groups = [group["name"] for group in summary["groups"]]
    held = sum(step[f"group/{name}/blocks_live"] for step in steps for name in groups)
    running = sum(step["step/running"] for step in steps)
    return (
        changed["model.window"],
        f"{summary['quality/bits_per_byte']:.3f}",
        f"{held / running:.1f}",
        f"{running / len(steps):.1f}",
        f"{summary['hit_rate']:.1%}",
        f"{sum(summary[f'group/{name}/evictions'] for name in groups):,}",
    )


def table(sweep: Path) -> str:
    """The table of a finished sweep."""
    jobs = sorted((place for place in sweep.iterdir() if place.is_dir()), key=lambda place: int(place.name))
    lines = [HEADINGS, tuple("--:" for _ in HEADINGS), *map(row, jobs)]
    packages = f"kvhybrid {version('kvhybrid')}, torch {version('torch')}, Python {platform.python_version()}"
    return "\n".join(
        [
            *(f"| {' | '.join(cells)} |" for cells in lines),
            "",
            f"{date.today()}, {packages}, {platform.machine()}.",
        ]
    )


def plot(folder: Path) -> None:
    """Draw ``plot.png`` of a folder from its ``table.md``."""
    rows = read_table(folder / "table.md")
    figure, axes = figure_of(figsize=(6, 4))
    held = [float(cells["blocks a request"]) for cells in rows]
    bits = [float(cells["bits per byte"]) for cells in rows]
    axes.plot(held, bits, "o-")
    for x, y, cells in zip(held, bits, rows, strict=True):
        axes.annotate(f"window {cells['window']}", (x, y), textcoords="offset points", xytext=(6, 4), fontsize=8)
    axes.margins(0.15)
    axes.set_xlabel("blocks a request")
    axes.set_ylabel("bits per byte")
    axes.grid(alpha=0.25)
    save(figure, folder / "plot.png")


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m runs.quality.run", description=__doc__)
    parser.add_argument("--redraw", action="store_true", help="only draw plot.png from table.md")
    options = parser.parse_args(given)
    if not options.redraw:
        sweep = HERE.parent / "outputs" / "quality" / f"{datetime.now():%Y-%m-%d_%H-%M-%S}"
        code = kvhybrid(["run", "experiment=quality", f"hydra.sweep.dir={sweep}"])
        if code:
            return code
        RunFolder(HERE).write_text("table.md", table(sweep) + "\n")
    plot(HERE)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
