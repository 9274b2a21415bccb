"""The one error that the command line turns into a line and exit code 2."""

from __future__ import annotations


class InputError(ValueError):
    """A mistake in what the user gave: a config, a file, an argument.

    Its message is one or two lines that name the place, what was found and what is accepted.
    """
