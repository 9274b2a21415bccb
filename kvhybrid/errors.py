"""Errors that the command line reports in one line and an exit code."""

from __future__ import annotations

import difflib
import os
import sys
import traceback
from collections.abc import Iterable

MOST_NAMES = 24
"""Accepted names that a message lists."""


class InputError(ValueError):
    """Invalid input from the user: a config, a file, an argument. Exit code 2.

    The message is one or two lines with the location, what was found and what is accepted.
    """


class RunError(RuntimeError):
    """A run that cannot continue, although its configuration is valid. Its results so far are kept. Exit code 1.

    The message is one or two lines, as for `InputError`.
    """


class OutputError(RunError):
    """A result that could not be written, e.g. because the disk is full. Exit code 1."""


def nearest(found: str, accepted: Iterable[str], prefix: str = "") -> str:
    """``; did you mean …? accepted: …`` for a name that is not among ``accepted``."""
    accepted = list(accepted)
    shown = accepted[:MOST_NAMES]
    if len(accepted) > MOST_NAMES:
        shown.append(f"and {len(accepted) - MOST_NAMES} more")
    close = difflib.get_close_matches(found, accepted, n=1)
    hint = f"; did you mean {prefix}{close[0]}?" if close else ";"
    return f"{hint} accepted: {', '.join(shown) or 'nothing'}"


def one_line(error: BaseException) -> str:
    """The message of ``error`` on one line, or the name of its class if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__


def described(error: BaseException) -> str:
    """An unexpected error on one line: its class and its message."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


TRACEBACK_HINT = "; HYDRA_FULL_ERROR=1 shows the traceback"


def wants_traceback() -> bool:
    """Whether HYDRA_FULL_ERROR requests tracebacks of user errors too."""
    return os.environ.get("HYDRA_FULL_ERROR") == "1"


def print_error(verb: str, error: Exception, with_traceback: bool) -> None:
    """Print ``error`` on the last line of stderr."""
    if with_traceback:
        traceback.print_exception(error)
    print(f"kvhybrid {verb}: {error}", file=sys.stderr)
