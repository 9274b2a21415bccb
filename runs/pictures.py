"""Pictures of the recipes: figures without a display, and the tables that they are drawn from."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Any

from kvhybrid.run_folder import RunFolder


def figure_of(*args: Any, **options: Any) -> tuple[Any, Any]:
    """``pyplot.subplots`` for a file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(*args, **options)


def save(figure: Any, path: Path) -> None:
    """Write a PNG."""
    from matplotlib import pyplot

    figure.tight_layout()
    with RunFolder(path.parent).atomic_path(path.name) as partial:
        figure.savefig(partial, dpi=130, format="png")
    pyplot.close(figure)


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of the table that a Markdown file begins with, by the column's heading."""
    lines = takewhile(lambda line: line.startswith("|"), path.read_text(encoding="utf-8").splitlines())
    headings, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [dict(zip(headings, row, strict=False)) for row in rows]
