"""Ctrl-C and SIGTERM: both end a run gracefully, with different exit codes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM, which clusters send at the time limit."""


NAMES: dict[str, type[KeyboardInterrupt]] = {"Ctrl-C": KeyboardInterrupt, "SIGTERM": Terminated}
"""Names of the interrupts in summaries."""


def name_of(interrupt: KeyboardInterrupt) -> str:
    return "SIGTERM" if isinstance(interrupt, Terminated) else "Ctrl-C"


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """128 plus the number of the signal, as in shells."""
    return 128 + (signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT)


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Let the first SIGTERM raise `Terminated`, and ignore later ones while the run ends.

    An existing handler, such as submitit's, is kept. Outside of the main thread, no handler is installed.
    """
    if threading.current_thread() is not threading.main_thread() or (
        signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return
    signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated
