"""``kvhybrid check-spec``: the conformance kit for the author of a spec."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NoReturn

from kvhybrid.errors import InputError
from kvhybrid.settings.values import MOST

DESCRIPTION = """Checks a spec against the contract of kvhybrid.specs, and its manager against the generic one and
brute force, with random traffic. One line per check:

  live set     below p; dead positions stay dead
  page         its parts add up, depend on the block size, and can be padded
  value        frozen, hashable, equal exactly if all fields are
  name         registered, with a manager that can be imported
  bound        admission_blocks is never below the most blocks that a step touches
  manager      answers and state equal those of the generic manager, after every call
  hits         every look-up finds the same as brute force over the live set
  invariants   every block has its holders and one place, every key one meaning
  exceptions   no exceptions are raised"""

EPILOG = """SPEC is module:Spec, a class whose required integer fields get random values; or module:spec,
one spec; or module:function, which returns a list of specs. The current folder is searched too.

exit code: 0 all checks pass, 1 a contract is broken, 2 SPEC cannot be checked"""


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see kvhybrid check-spec --help")


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST:
        raise ArgumentTypeError(f"found {text!r}; accepted: a whole number from 1 to {MOST:,}")
    return int(text)


def _parser() -> ArgumentParser:
    parser = _Parser(
        prog="kvhybrid check-spec",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("spec", metavar="SPEC", help="module:Spec")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random values (default 0)")
    parser.add_argument(
        "--count", type=_count, default=150, help="number of random scenarios (default 150, a few seconds)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder for a failing scenario (default: here)"
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Check the spec. Returns the exit code."""
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    from kvhybrid.conformance.kit import examine
    from kvhybrid.conformance.report import report
    from kvhybrid.conformance.subject import load_subject

    subject = load_subject(options.spec, Random(f"{options.seed} specs"))
    findings = examine(subject, options.seed, options.count)
    return int(not report(findings, subject.name, options.out, sys.stdout.encoding or "ascii"))
