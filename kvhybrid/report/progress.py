"""Progress of a run: a bar on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import sys
from time import perf_counter
from types import TracebackType

from kvhybrid.cache.stats import StepStats
from kvhybrid.console import console

PLAIN_LINES = 4
"""Lines of progress if stderr is not a terminal."""


class Progress:
    """Shows progress on stderr, so that stdout has only results."""

    def __init__(self, name: str, num_requests: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        terminal = console(sys.stderr)
        self._name = name
        self._num_requests = num_requests
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("requests  {task.fields[figures]}"),
            TimeElapsedColumn(),
            console=terminal,
            disable=not terminal.is_terminal,
        )
        self._task = self._bar.add_task(name, total=num_requests, figures="")
        self._plain = not terminal.is_terminal
        self._next_line = 1
        self._tokens = 0
        self._began = perf_counter()

    def __enter__(self) -> Progress:
        if self._plain:
            print(f"{self._name}: {self._num_requests} requests", file=sys.stderr)
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, stats: StepStats, num_finished: int) -> None:
        """Show the progress after a step."""
        self._tokens += stats.num_scheduled_tokens
        rate = self._tokens / max(perf_counter() - self._began, 1e-9)
        figures = f"{rate:,.0f} computed tokens/s  {stats.cache.hit_rate:.1%} hit"
        self._bar.update(self._task, completed=num_finished, figures=figures)
        if self._plain and num_finished * PLAIN_LINES >= self._next_line * self._num_requests:
            print(f"  step {stats.step}: {num_finished} requests done, {figures}", file=sys.stderr)
            self._next_line = num_finished * PLAIN_LINES // self._num_requests + 1
