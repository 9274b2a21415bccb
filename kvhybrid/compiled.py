"""Which form of the hot modules runs: compiled, or the sources as they stand.

Installing kvhybrid compiles the modules that every call passes (``setup.py`` lists them), where it can. Their
sources stay in charge: whoever changes one runs all of them as they are written, until the next installation.
``KVHYBRID_COMPILED=0`` in the environment chooses the sources as well, for a debugger or a patch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import source_hash, spec_from_file_location
from types import ModuleType

HERE = os.path.dirname(__file__)
MANIFEST = os.path.join(HERE, "compiled.txt")
"""A line for the compiled files' suffix, which names the Python that they are for, and one for every module: its
name, and the hash of the source that it was compiled from."""

SHARED = os.path.join(os.path.dirname(HERE), "kvhybrid__mypyc")
"""What all compiled modules load, without its suffix."""


def _source_of(name: str) -> str:
    return os.path.join(HERE, *name.split(".")[1:]) + ".py"


def _is_current() -> bool:
    """Whether all of what was compiled is there, for this Python and from the sources that are here."""
    try:
        with open(MANIFEST) as file:
            suffix, *modules = file.read().splitlines()
        if suffix != EXTENSION_SUFFIXES[0] or not os.path.exists(SHARED + suffix):
            return False
        for name, digest in map(str.split, modules):
            with open(_source_of(name), "rb") as source:
                same = source_hash(source.read()).hex() == digest
            if not same or not os.path.exists(_source_of(name).removesuffix(".py") + suffix):
                return False
    except (OSError, ValueError):
        return False
    return True


class SourceFinder:
    """Finds the sources of kvhybrid's modules, also where a compiled form lies beside them."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.startswith("kvhybrid.") and os.path.exists(_source_of(name)):
            return spec_from_file_location(name, _source_of(name))
        return None


is_compiled = os.environ.get("KVHYBRID_COMPILED") != "0" and _is_current()
"""Whether the compiled form runs."""

if not is_compiled:
    sys.meta_path.insert(0, SourceFinder)
