"""Text that every installation has: the source of the Python standard library, in two parts that never meet."""

from __future__ import annotations

import sysconfig
from hashlib import sha256
from pathlib import Path

HELD_OUT_SHARE = 16
"""One file in this many is held out."""


def source_files() -> list[Path]:
    """The modules at the top of the running Python's standard library, by name.

    Packages are left out, and so is what the build wrote about its own machine. Raises ValueError for a Python
    that came without its source.
    """
    library = Path(sysconfig.get_path("stdlib"))
    found = sorted(place for place in library.glob("*.py") if not place.name.startswith("_sysconfigdata"))
    if not found:
        raise ValueError(f"no source of the Python standard library in {library}")
    return found


def is_held_out(path: Path) -> bool:
    """Whether no model of ours was trained on the file. Its name alone decides, so that a Python with more or
    fewer modules holds out the same ones."""
    return sha256(path.name.encode()).digest()[0] % HELD_OUT_SHARE == 0


def training_text() -> bytes:
    """What the byte models are trained on: all files that are not held out, one after another."""
    return _joined(held_out=False)


def held_out_text() -> bytes:
    """What no byte model has seen, one file after another."""
    return _joined(held_out=True)


def _joined(*, held_out: bool) -> bytes:
    return b"\n".join(path.read_bytes() for path in source_files() if is_held_out(path) is held_out)
