"""Text that every installation has: the source of Python's standard library, split for training and evaluation."""

from __future__ import annotations

import sysconfig
from hashlib import sha256
from pathlib import Path

HELD_OUT_SHARE = 16
"""One in this many files is held out."""


def source_files() -> list[Path]:
    """The top-level modules of the running Python's standard library, sorted by name.

    Packages are excluded, and so are files that the build generates for its machine. Raises ValueError if Python
    was installed without its source.
    """
    library = Path(sysconfig.get_path("stdlib"))
    found = sorted(place for place in library.glob("*.py") if not place.name.startswith("_sysconfigdata"))
    if not found:
        raise ValueError(f"no source of the Python standard library in {library}")
    return found


def is_held_out(path: Path) -> bool:
    """Whether the byte models were not trained on the file. This depends only on its name, so Python versions with
    more or fewer modules hold out the same ones."""
    return sha256(path.name.encode()).digest()[0] % HELD_OUT_SHARE == 0


def training_text() -> bytes:
    """The training text of the byte models: all files that are not held out, concatenated."""
    return _joined(held_out=False)


def held_out_text() -> bytes:
    """The held-out files, concatenated."""
    return _joined(held_out=True)


def _joined(*, held_out: bool) -> bytes:
    return b"\n".join(path.read_bytes() for path in source_files() if is_held_out(path) is held_out)
