"""The one error that the command line turns into a line and exit code 2."""

from __future__ import annotations

import os
import sys
import traceback


class InputError(ValueError):
    """A mistake in what the user gave: a config, a file, an argument.

    Its message is one or two lines that name the place, what was found and what is accepted.
    """


def wants_traceback() -> bool:
    """Whether the environment asks for tracebacks of mistakes too, as Hydra spells it."""
    return os.environ.get("HYDRA_FULL_ERROR") == "1"


def print_error(verb: str, error: InputError, with_traceback: bool) -> None:
    """Say on stderr what was wrong, on its last line."""
    if with_traceback:
        traceback.print_exception(error)
    print(f"kvhybrid {verb}: {error}", file=sys.stderr)
