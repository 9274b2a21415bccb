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
    """Let the first SIGTERM raise `Terminated`; those after it are ignored, so that it can end in order.

    A handler that somebody else installed, such as submitit's, is left alone. Only a main thread can have one.
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
