"""Base class of runs and replays: run folder, trackers, status and summary."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, Generic, TypeVar

from kvhybrid.errors import InputError, OutputError, RunError, described, nearest, one_line
from kvhybrid.interruption import name_of, sigterm_raises
from kvhybrid.plugins import failure_of
from kvhybrid.report.history import History
from kvhybrid.report.plot import plot_run
from kvhybrid.report.progress import Progress
from kvhybrid.report.summary import RunSummary
from kvhybrid.report.table import print_run
from kvhybrid.run_folder import SUMMARY, RunFolder
from kvhybrid.sessions.invocation import Invocation
from kvhybrid.sessions.provenance import provenance
from kvhybrid.sessions.recent_rates import RecentRates
from kvhybrid.tracking.base import Tracker, Trackers

Summary = TypeVar("Summary", bound=RunSummary)


class Session(ABC, Generic[Summary]):
    """One run, from the first file in its folder to the last.

    The folder must be claimed and empty. However the run ends, its results so far are written there with the
    status done, interrupted, refused or failed.
    """

    def __init__(
        self,
        folder: RunFolder,
        invocation: Invocation,
        *,
        name: str,
        objective: str,
        num_requests: int,
        trackers: Mapping[str, Tracker],
    ) -> None:
        self.folder = folder
        self.invocation = invocation
        self.name = name
        self.num_requests = num_requests
        self.objective = objective
        self.trackers = Trackers(trackers)
        self.history = History()
        self.recent_rates = RecentRates()
        self._unwritten: set[str] = set()

    @abstractmethod
    def work(self, progress: Progress) -> None:
        """Do the actual work.

        Raises:
            InputError: It turns out to be impossible.
            RunError: It cannot continue.
        """

    def incomplete(self) -> str | None:
        """After the work: why its results are not those that were asked for, in one line; None if they are."""
        return None

    @abstractmethod
    def summarize(self, **ending: Any) -> Summary:
        """The statistics so far. ``ending`` has the fields that `run` sets, from ``name`` to ``folder``."""

    def report(self, summary: Summary) -> None:
        """Print the results."""
        print_run(summary)

    def backends(self) -> Mapping[str, Sequence[str]]:
        """The kernel backends in use, by kind of backend."""
        return {}

    def writes(self) -> Mapping[str, Callable[[], None]]:
        """Functions that write additional files at the end, by file name."""
        return {}

    def run(self) -> Summary:
        """Work; then, or when interrupted by Ctrl-C or SIGTERM, write and print the results.

        A file that cannot be written is reported on stderr, and turns the status done into failed. So do results
        that are `incomplete`.

        Raises:
            InputError: ``objective`` is not a figure of the summary. Nothing is written then.
            OutputError: The first file could not be written.
            RunError: The run could not continue. Its results so far are printed.
        """
        self._require_objective()
        self._open_folder()
        began, status, reason, is_reported = perf_counter(), "failed", None, True
        with sigterm_raises():
            try:
                self.trackers.start(self.invocation.config, self.folder.path)
                began = perf_counter()
                with Progress(self.name, self.num_requests) as progress:
                    self.work(progress)
                reason = self.incomplete()
                status = "failed" if reason else "done"
                if reason:
                    print(f"kvhybrid {self.invocation.verb}: {reason}", file=sys.stderr)
            except KeyboardInterrupt as interrupt:
                status, reason = "interrupted", name_of(interrupt)
            except BaseException as error:
                status, reason, is_reported = _ending(error)
                raise
            finally:
                summary = self._close(status, reason, perf_counter() - began)
                if is_reported:
                    self.report(summary)
        return summary

    def _require_objective(self) -> None:
        figures = self._summarize("done", None, 0.0).objectives()
        if self.objective not in figures:
            raise InputError(
                f"objective={self.objective}: no such figure of the summary"
                f"{nearest(self.objective, figures, 'objective=')}"
            )

    def _open_folder(self) -> None:
        try:
            self.folder.write_text("config.yaml", self.invocation.yaml())
            self.folder.write_json("provenance.json", provenance(self.invocation, self.backends()))
        except OSError as error:
            self.folder.clear()
            raise OutputError(f"{self.folder.path}: {error.strerror}") from error

    def _close(self, status: str, reason: str | None, seconds: float) -> Summary:
        summary = self._summarize(status, reason, seconds)
        written = self._write_summary(summary)  # first, since the rest takes time and may be interrupted
        for name, write in self.writes().items():
            written &= self._write(name, write)
        if self.history.points and status in ("done", "interrupted"):
            written &= self._write("hits.png", lambda: self._plot(summary))
        if status == "done" and not (written and self.trackers.all_written):
            summary = self._summarize("failed", "not everything could be written", seconds)
        self.trackers.finish(summary.figures())
        self.folder.unfinished = not self._write_summary(summary)
        return summary

    def _summarize(self, status: str, reason: str | None, seconds: float) -> Summary:
        return self.summarize(
            name=self.name,
            status=status,
            reason=reason,
            seconds=seconds,
            folder=self.folder.path,
            overrides=self.invocation.overrides,
        )

    def _write_summary(self, summary: Summary) -> bool:
        content = summary.to_json(self.trackers.failures)
        return self._write(SUMMARY, lambda: self.folder.write_json(SUMMARY, content))

    def _plot(self, summary: Summary) -> None:
        with self.folder.atomic_path("hits.png") as partial:
            plot_run(self.history, summary, partial)

    def _write(self, name: str, write: Callable[[], None]) -> bool:
        """Call ``write``; on failure, report it and return False."""
        try:
            write()
        except OSError as error:
            if name not in self._unwritten:
                self._unwritten.add(name)
                reason = error.strerror or one_line(error)
                print(f"kvhybrid {self.invocation.verb}: {self.folder.path / name}: {reason}", file=sys.stderr)
            return False
        return True


def _ending(error: BaseException) -> tuple[str, str, bool]:
    """Status and reason of a run that ends with ``error``, and whether its results are printed."""
    if isinstance(error, InputError):
        return "refused", one_line(error), False
    if isinstance(error, RunError):
        return "failed", one_line(error), True
    line = failure_of(error)
    return "failed", line or described(error), line is not None
