"""``kvhybrid specs``: lists the registered specs with manager, origin and live set."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence

from kvhybrid.errors import InputError

HELP = """usage: kvhybrid specs

Lists the registered specs: name, manager of the blocks, origin, and the earlier positions that the token at
position p still reads. Specs of other distributions are listed if these have an entry point in the group
kvhybrid.specs."""


def main(arguments: Sequence[str]) -> int:
    """Print the table. Returns the exit code."""
    if any(argument in ("-h", "--help") for argument in arguments):
        print(HELP)
        return 0
    if arguments:
        raise InputError(f"takes no arguments, found {arguments[0]!r}")

    from kvhybrid.managers.registry import manager_of
    from kvhybrid.plugins import PluginError
    from kvhybrid.specs import registry

    classes = registry.load_all()
    rows = [("spec", "manager", "origin", "live set")]
    for entry in registry.entries():
        if spec := classes.get(entry.name):
            try:
                manager = manager_of(spec).__qualname__
            except PluginError as error:
                print(f"kvhybrid specs: {error}", file=sys.stderr)
                manager = "-"
            rows.append((entry.name, manager, entry.origin, first_sentence(spec)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        padded = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        print(f"{padded}  {row[3]}".rstrip())
    return 0


def first_sentence(spec: type[object]) -> str:
    """The first paragraph of the class docstring on one line, without markup: for a spec, its live set."""
    paragraph = (inspect.cleandoc(spec.__doc__) if spec.__doc__ else "").split("\n\n")[0]
    return re.sub(r"\s+", " ", paragraph).replace("`", "").rstrip(".")
