"""The command of a recipe that measures recorded traces: ``python -m runs.NAME.run``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path


def run_recipe(
    given: Sequence[str] | None,
    *,
    name: str,
    description: str | None,
    source: str,
    metavar: str,
    source_help: str,
    measure: Callable[[Path], bool],
    plot: Callable[[Path], None],
    folder: Path,
) -> int:
    """Write the table of ``folder`` by ``measure``, unless ``--redraw`` is given, and draw its picture.

    Args:
        given: The arguments, by default those of the process.
        source: The option that names what is measured, such as ``--traces``.
        measure: Writes the table and returns whether every expected figure came out.

    Returns:
        The exit code: 1 if an expected figure did not come out.
    """
    parser = argparse.ArgumentParser(prog=f"python -m runs.{name}.run", description=description)
    sources = parser.add_mutually_exclusive_group(required=True)
    sources.add_argument(source, dest="source", type=Path, metavar=metavar, help=source_help)
    sources.add_argument("--redraw", action="store_true", help="only draw plot.png from table.md")
    options = parser.parse_args(given)
    good = options.redraw or measure(options.source)
    plot(folder)
    return 0 if good else 1
