"""The command line, ``kvhybrid VERB [arguments]``. A verb's module is imported only when it is chosen."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

from kvhybrid.console import accept_any_text
from kvhybrid.errors import InputError, print_error, wants_traceback


@dataclass(frozen=True)
class Verb:
    """A verb: the module whose ``main(arguments) -> exit code`` does the work, and one line of help."""

    module: str
    summary: str


VERBS = {
    "check-spec": Verb("kvhybrid.commands.check_spec", "check a spec of your own against its contract"),
    "replay": Verb("kvhybrid.commands.replay", "replay a request trace through the cache, without a model"),
    "run": Verb("kvhybrid.commands.run", "run a model on a workload and show the hit rates of every group"),
    "scenario": Verb("kvhybrid.commands.scenario", "play scenario files on the real cache manager"),
    "specs": Verb("kvhybrid.commands.specs", "list the registered specs: what a layer can keep"),
}

USAGE = "usage: kvhybrid VERB [arguments]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb. Returns 0, 2 for a mistake of the user, 130 when interrupted."""
    accept_any_text()
    given = list(sys.argv[1:] if arguments is None else arguments)
    name, rest = (given[0], given[1:]) if given else ("--help", [])
    try:
        with _modules_here():
            code = _dispatch(name, rest)
        sys.stdout.flush()
    except InputError as error:
        print_error(name, error, wants_traceback())
        return 2
    except KeyboardInterrupt:
        print(f"kvhybrid {name}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of a pipe has gone. Python would complain again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


@contextmanager
def _modules_here() -> Iterator[None]:
    """Find modules in the current folder too, behind all others so that none of theirs is hidden."""
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
    """The verbs, one a line."""
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
            "kvhybrid VERB --help tells what a verb takes.",
        ]
    )
