"""The end of a sweep: what its jobs' folders say, as a table, as ``sweep.json`` and as an exit code."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from kvhybrid.report.table import print_sweep
from kvhybrid.run_folder import RunFolder, remove_empty

SWEEP_CONFIG = "multirun.yaml"
"""The file that Hydra writes into the sweep's folder before it looks at the jobs."""


_started: ContextVar[list[Path]] = ContextVar("the folders of the sweeps that were started")


@contextmanager
def sweeps_started() -> Iterator[list[Path]]:
    """The folders of the sweeps that Hydra starts from here on: one, or none where it runs a single job."""
    token = _started.set([])
    try:
        yield _started.get()
    finally:
        _started.reset(token)


class SweepStart(Callback):  # type: ignore[misc]
    """Makes the folder of a sweep known for its end, however it comes about."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        _started.get().append(Path(config.hydra.sweep.dir).absolute())


def close_sweep(folder: Path) -> int | None:
    """Print one row per job of the sweep in ``folder``, and write ``sweep.json``.

    Returns 2 where a job was refused, else 1 where one was not done, else 0; None where no job was started.
    Nothing is left of a sweep without jobs.
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
    print_sweep(jobs)
    print(folder)
    statuses = {found["status"] for _, found in jobs}
    return 2 if "refused" in statuses else int(statuses != {"done"} or not written)


def _jobs(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of each job, which is its folder's, and how it ended."""
    for parent, names, _ in os.walk(folder):
        found = RunFolder(parent).outcome() if Path(parent) != folder else None
        if found is not None:
            names.clear()
            yield Path(parent).relative_to(folder).as_posix(), found


def _discard(folder: Path) -> None:
    if folder.is_dir() and [place.name for place in folder.iterdir()] == [SWEEP_CONFIG]:
        (folder / SWEEP_CONFIG).unlink()
        remove_empty(folder, below=Path.cwd())
