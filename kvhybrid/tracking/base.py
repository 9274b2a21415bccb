"""The interface of trackers, and the set of trackers of one run."""

from __future__ import annotations

import errno
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kvhybrid.tracking.paths import without_folders

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class TrackerError(RuntimeError):
    """A tracker failed; the message says why in one line."""


def reason_of(error: Exception) -> str:
    """The error of a tracker in one line."""
    message = " ".join(str(error).split()) or "no message"
    return message if isinstance(error, TrackerError) else f"{type(error).__name__}: {message}"


class Tracker(ABC):
    """Receives the metrics of one run: `start` once, `log` after every step, `finish` once.

    It gets names and numbers, never prompts or token ids. Subclasses are dataclasses whose fields are the keys of
    ``conf/tracking/<name>.yaml``. A tracker that raises an exception is dropped; the run and the other trackers
    continue.
    """

    @abstractmethod
    def start(self, config: Mapping[str, Any], folder: Path) -> None:
        """Start with the resolved configuration as plain data, in which paths are cut to their last components,
        and the run folder, for trackers that write files."""

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics after ``step``, under the names of `kvhybrid.cache.stats`."""

    @abstractmethod
    def finish(self, summary: Mapping[str, Any]) -> None:
        """End with the metrics of the whole run. Its ``status`` is ``done`` if there were no errors."""


class Trackers:
    """The trackers of a run. A tracker that fails is dropped with a line on stderr."""

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._waiting = dict(trackers)
        self._working: dict[str, Tracker] = {}
        self.failures: dict[str, str] = {}
        """Errors by the name of the tracker."""
        self.all_written = True
        """False once a tracker has found the disk full."""

    def start(self, config: Mapping[str, Any], folder: Path) -> None:
        """Start the trackers one by one. After an interrupt, those that have not started are not called again."""
        shown = without_folders(config)
        for name, tracker in self._waiting.items():
            if self._goes_well(name, partial(tracker.start, shown, folder)):
                self._working[name] = tracker

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._each(lambda tracker: tracker.log(step, metrics))

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._each(lambda tracker: tracker.finish(summary))

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._working.items()):
            if not self._goes_well(name, partial(call, tracker)):
                del self._working[name]

    def _goes_well(self, name: str, call: Callable[[], None]) -> bool:
        try:
            call()
        except Exception as error:
            reason = reason_of(error)
            self.failures[name] = reason
            self.all_written &= not (isinstance(error, OSError) and error.errno in DISK_FULL)
            print(f"tracking.{name} failed, the run continues without it: {reason}", file=sys.stderr)
            return False
        return True
