"""The contract of this folder, and the set of trackers of one run."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvhybrid.tracking.paths import without_folders


class TrackerError(RuntimeError):
    """A tracker that cannot do its work; the message says why in one line."""


@dataclass(kw_only=True)
class Tracker(ABC):
    """Takes the figures of one run: `start` once, `log` after every step, `finish` once.

    It is given names and numbers, never prompts or token ids. Subclasses are dataclasses whose fields are the
    keys of ``conf/tracking/<name>.yaml``; one of another package is chosen there with ``_target_``. They
    cannot be frozen, since Hydra merges values into them. Any exception takes the tracker out of the run; the
    run and the other trackers go on.
    """

    @abstractmethod
    def start(self, config: Mapping[str, Any], folder: Path) -> None:
        """Begin: the whole configuration as plain data, its paths cut to their last names, and the run folder for
        what is kept in files."""

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """The figures after ``step``, under the names of `kvhybrid.cache.stats`."""

    @abstractmethod
    def finish(self, summary: Mapping[str, Any]) -> None:
        """End: the figures of the whole run."""


class Trackers:
    """The trackers of a run. One that fails is dropped with a line on stderr, and the others go on."""

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._working = dict(trackers)
        self.failures: dict[str, str] = {}
        """What went wrong, by the name of the tracker."""

    def start(self, config: Mapping[str, Any], folder: Path) -> None:
        shown = without_folders(config)
        self._each(lambda tracker: tracker.start(shown, folder))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._each(lambda tracker: tracker.log(step, metrics))

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._each(lambda tracker: tracker.finish(summary))

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._working.items()):
            try:
                call(tracker)
            except Exception as error:
                del self._working[name]
                said = " ".join(str(error).split()) or "no message"
                reason = said if isinstance(error, TrackerError) else f"{type(error).__name__}: {said}"
                self.failures[name] = reason
                print(f"tracking.{name} failed, the run goes on without it: {reason}", file=sys.stderr)
