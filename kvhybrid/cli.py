"""The command line, ``kvhybrid VERB [arguments]``. A verb's module is imported only when it is chosen."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module

from kvhybrid.console import accept_any_text
from kvhybrid.errors import InputError, RunError, print_error, wants_traceback
from kvhybrid.interruption import Terminated, exit_code, sigterm_raises
from kvhybrid.streams import lasting_streams


@dataclass(frozen=True)
class Verb:
    """A verb: the module whose ``main(arguments) -> exit code`` implements it, and one line of help."""

    module: str
    summary: str


VERBS = {
    "check-spec": Verb("kvhybrid.commands.check_spec", "check a spec of your own against its contract"),
    "plan": Verb("kvhybrid.commands.plan", "plan a model's cache from its config: blocks, capacity, waste"),
    "replay": Verb("kvhybrid.commands.replay", "replay a request trace through the cache, without a model"),
    "run": Verb("kvhybrid.commands.run", "run a model on a workload and show the hit rates of every group"),
    "scenario": Verb("kvhybrid.commands.scenario", "play scenario files on the real cache manager"),
    "specs": Verb("kvhybrid.commands.specs", "list the registered specs, which say what a layer can keep"),
}

USAGE = "usage: kvhybrid VERB [arguments]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb.

    Returns 0, or 2 for invalid input, 1 for a failure or output that could not be written, and 128 plus the
    signal's number for an interrupt.
    """
    accept_any_text()
    given = list(sys.argv[1:] if arguments is None else arguments)
    name, rest = (given[0], given[1:]) if given else ("--help", [])
    with lasting_streams() as lost:
        code = _run_verb(name, rest)
    with suppress(OSError):  # stderr itself may be lost
        for line in lost:
            print(f"kvhybrid {name}: {line}", file=sys.stderr)
    return code or int(bool(lost))


def _run_verb(name: str, arguments: list[str]) -> int:
    try:
        with sigterm_raises(), _modules_here():
            return _dispatch(name, arguments)
    except InputError as error:
        print_error(name, error, wants_traceback())
        return 2
    except RunError as error:
        print(f"kvhybrid {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        word = "terminated" if isinstance(interrupt, Terminated) else "interrupted"
        print(f"kvhybrid {name}: {word}", file=sys.stderr)
        return exit_code(interrupt)


@contextmanager
def _modules_here() -> Iterator[None]:
    """Search modules in the current folder too, after all others so that none is shadowed."""
    here = os.getcwd()
    if here in sys.path:
        yield
        return
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _dispatch(name: str, arguments: list[str]) -> int:
    if name in ("-h", "--help", "help"):
        print(help_text())
        return 0
    if name == "--version":
        from importlib.metadata import version

        print(f"kvhybrid {version('kvhybrid')}")
        return 0
    if name not in VERBS:
        print(f"kvhybrid: unknown verb {name!r}; accepted: {', '.join(VERBS)}", file=sys.stderr)
        return 2
    code: int = import_module(VERBS[name].module).main(arguments)
    return code


def help_text() -> str:
    """The verbs, one per line."""
    width = max(map(len, VERBS)) + 2
    lines = [f"  {name:<{width}}{verb.summary}" for name, verb in VERBS.items()]
    return "\n".join(
        [
            USAGE,
            "",
            "KV caches of hybrid models: run, measure and compare them.",
            "",
            "verbs:",
            *lines,
            "",
            "options:",
            "  --version   print the version",
            "",
            "kvhybrid VERB --help shows the arguments of a verb.",
        ]
    )
