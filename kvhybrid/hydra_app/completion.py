"""Bash completion of a Hydra verb's overrides. Hydra completes them, but its own script does not support verbs."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kvhybrid.errors import InputError

FLAGS = ("-sc", "--shell-completion")

# Hydra takes the first word of the line as the name of the program: here, that is the verb.
INSTALL = r"""_kvhybrid()
{
    local line=${COMP_LINE:0:COMP_POINT} choices=
    if (( COMP_CWORD > 1 )) && [[ ${COMP_WORDS[1]} =~ ^(plan|replay|run)$ ]]; then
        choices=$(COMP_LINE="${line#* }" "${COMP_WORDS[0]}" "${COMP_WORDS[1]}" -sc query=bash 2> /dev/null)
    fi
    COMPREPLY=($(compgen -o default -W "$choices" -- "${COMP_WORDS[COMP_CWORD]}"))
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=}
complete -o nospace -o default -F _kvhybrid kvhybrid"""
UNINSTALL = "complete -r kvhybrid; unset -f _kvhybrid"


def completion_script(arguments: Sequence[str]) -> str | None:
    """The script for bash to evaluate, if ``arguments`` request it. Raises `InputError` for other shells."""
    asked = [argument for argument in arguments if argument not in FLAGS]
    if len(asked) == len(arguments):
        return None
    if asked == ["install=bash"]:
        return INSTALL
    if asked == ["uninstall=bash"]:
        return UNINSTALL
    if asked != ["query=bash"]:
        found = " ".join(asked) or "nothing"
        raise InputError(f"-sc: found {found}; accepted: install=bash, uninstall=bash, query=bash")
    if "COMP_LINE" not in os.environ:
        raise InputError("-sc query=bash is for bash, which gives the line to complete as COMP_LINE; found none")
    return None
