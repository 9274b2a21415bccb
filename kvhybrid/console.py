"""Text for people: any character on any terminal, pipe or file, and nothing read as markup."""

from __future__ import annotations

import codecs
import io
import sys
from typing import IO, TYPE_CHECKING
from unicodedata import normalize

if TYPE_CHECKING:
    from rich.console import Console

PLAIN = "kvhybrid.plain"
"""The error handler that writes a character which an encoding lacks with plain ones: ``…`` as ``...``."""


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(normalize("NFKD", c).encode("ascii", "ignore").decode() or "?" for c in lacking), error.end


codecs.register_error(PLAIN, _plain)


def accept_any_text() -> None:
    """Let stdout take every character, whatever its encoding. Python lets stderr do so anyway."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=PLAIN)


def console(file: IO[str] | None = None, width: int | None = None) -> Console:
    """A rich console on ``file``, by default stdout, that shows texts as they are."""
    from rich.console import Console

    accept_any_text()
    return Console(file=file, width=width, markup=False, emoji=False, highlight=False)
