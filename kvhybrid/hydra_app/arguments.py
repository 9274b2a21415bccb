"""The command line of a Hydra verb: flags and overrides in any order, with one-line errors for anything else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from kvhybrid.errors import InputError
from kvhybrid.hydra_app.errors import MOST_SHOWN


def flags_first(verb: str, arguments: Sequence[str]) -> list[str]:
    """``arguments`` with the flags first, since Hydra's parser does not accept overrides both before and after
    flags.

    Raises `InputError` for a flag that is invalid or not supported here.
    """

    def refuse(message: str) -> NoReturn:
        raise InputError(f"{message}; see kvhybrid {verb} --help")

    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            refuse(f"cannot read {argument!r}: not UTF-8 text")
    parser = get_args_parser()
    parser.allow_abbrev = False
    parser.error = refuse
    given = parser.parse_intermixed_args(arguments)
    if given.experimental_rerun is not None:
        refuse("--experimental-rerun is not accepted, since it unpickles a file")
    if given.package is not None and given.cfg is None:
        refuse("--package is only accepted with --cfg")
    flags = list(arguments)
    for override in given.overrides:
        flags.remove(override)
        try:
            OverridesParser.create().parse_override(override)
        except HydraException:
            pass  # Hydra reports it after parsing
        except ValueError as error:  # more digits than Python's limit
            refuse(f"cannot read {override[:MOST_SHOWN]}...: {error}")
    return [*flags, *given.overrides]
