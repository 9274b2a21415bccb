"""Ctrl-C and SIGTERM: both end a run in order, and an exit code tells them apart."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM, which a cluster sends when the time is up."""


NAMES: dict[str, type[KeyboardInterrupt]] = {"Ctrl-C": KeyboardInterrupt, "SIGTERM": Terminated}
"""What summaries call them."""


def name_of(interrupt: KeyboardInterrupt) -> str:
    return "SIGTERM" if isinstance(interrupt, Terminated) else "Ctrl-C"


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """128 and the number of the signal, as shells have it."""
    return 128 + (signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT)


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Let the first SIGTERM raise `Terminated`, and ignore later ones while the run ends.

    A handler that is already installed, such as submitit's, stays. Outside the main thread, nothing is installed.
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
