"""Console output of arbitrary text, for any encoding and without interpreting markup."""

from __future__ import annotations

import codecs
import io
import sys
from typing import IO, TYPE_CHECKING
from unicodedata import normalize

if TYPE_CHECKING:
    from rich.console import Console

PLAIN = "kvhybrid.plain"
"""Name of the error handler that replaces characters missing in an encoding, e.g. ``…`` by ``...``."""


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(normalize("NFKD", c).encode("ascii", "ignore").decode() or "?" for c in lacking), error.end


codecs.register_error(PLAIN, _plain)


def accept_any_text() -> None:
    """Let stdout accept every character in any encoding, as Python's stderr does by default."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=PLAIN)


def console(file: IO[str] | None = None, width: int | None = None) -> Console:
    """A rich console on ``file``, by default stdout, that prints text unchanged."""
    from rich.console import Console

    accept_any_text()
    return Console(file=file, width=width, markup=False, emoji=False, highlight=False)
