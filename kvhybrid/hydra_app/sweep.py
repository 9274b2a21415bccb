"""The end of a sweep: collects the outcomes in its jobs' folders into a table, ``sweep.json`` and an exit code."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from kvhybrid.run_folder import RunFolder, remove_empty

PrintJobs = Callable[[Sequence[tuple[str, Mapping[str, Any]]]], None]
"""Shows the jobs of a sweep: the name of each, and the content of its ``summary.json``."""

SWEEP_CONFIG = "multirun.yaml"
"""The file that Hydra writes to the sweep's folder before it starts jobs."""


GRID = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
PATIENCE = 20.0
"""Seconds to wait for the processes of a broken launcher to end."""


@dataclass(frozen=True)
class StartedSweep:
    """A sweep that Hydra has started."""

    folder: Path
    is_grid: bool
    """Whether it runs every combination of the given values, so that a second start has the same jobs."""


_started: ContextVar[list[StartedSweep]] = ContextVar("the sweeps that were started")


@contextmanager
def sweeps_started() -> Iterator[list[StartedSweep]]:
    """The sweeps that Hydra starts within the block: one, more if it is started again, none for a single job."""
    token = _started.set([])
    try:
        yield _started.get()
    finally:
        _started.reset(token)


class SweepStart(Callback):  # type: ignore[misc]
    """Records the folder of a sweep, so that `close_sweep` can be called however the sweep ends."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        is_grid = config.hydra.sweeper.get("_target_") == GRID
        _started.get().append(StartedSweep(Path(config.hydra.sweep.dir).absolute(), is_grid))


def wait_for_jobs(folder: Path) -> None:
    """Wait until no process writes to a job of the sweep, or `PATIENCE` is over."""
    end = monotonic() + PATIENCE
    while monotonic() < end and any(found["status"] == "running" for _, found in _jobs(folder)):
        sleep(0.1)


def close_sweep(folder: Path, print_jobs: PrintJobs) -> int | None:
    """Print one row per job of the sweep in ``folder``, and write ``sweep.json``.

    Returns 2 if a job was refused, else 1 if a job was not done, else 0. If no job was started, returns None and
    removes the folder.
    """
    jobs = sorted(_jobs(folder), key=lambda job: [(len(part), part) for part in re.split(r"\D+", job[0])])
    if not jobs:
        _discard(folder)
        return None
    written = True
    try:
        RunFolder(folder).write_json("sweep.json", {"jobs": [{"job": name, **found} for name, found in jobs]})
    except OSError as error:
        written = False
        print(f"{folder / 'sweep.json'}: {error.strerror}", file=sys.stderr)
    print_jobs(jobs)
    print(folder)
    statuses = {found["status"] for _, found in jobs}
    return 2 if "refused" in statuses else int(statuses != {"done"} or not written)


def _jobs(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of each job, which is that of its folder, and its outcome."""
    for parent, names, _ in os.walk(folder):
        found = RunFolder(parent).outcome() if Path(parent) != folder else None
        if found is not None:
            names.clear()
            yield Path(parent).relative_to(folder).as_posix(), found


def _discard(folder: Path) -> None:
    if folder.is_dir() and [place.name for place in folder.iterdir()] == [SWEEP_CONFIG]:
        (folder / SWEEP_CONFIG).unlink()
        remove_empty(folder, below=Path.cwd())
