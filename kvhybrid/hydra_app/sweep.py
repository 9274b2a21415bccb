"""Sweeps: the table at their end, and nothing left of one that could not start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from kvhybrid.report.table import print_sweep
from kvhybrid.run_folder import RunFolder, remove_empty

SWEEP_CONFIG = "multirun.yaml"
"""The file that Hydra writes into the sweep's folder before it looks at the jobs."""


class SweepReport(Callback):  # type: ignore[misc]
    """When a sweep has ended: one row per job, and all their summaries in ``sweep.json``."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        # So that the folder is known if composing the jobs fails.
        HydraConfig.instance().set_config(config)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        HydraConfig.instance().cfg = None
        folder = Path(config.hydra.sweep.dir).absolute()
        jobs = [(place.parent.name, json.loads(place.read_text())) for place in folder.glob("*/summary.json")]
        jobs.sort(key=lambda job: (len(job[0]), job[0]))
        if jobs:
            RunFolder(folder).write_json(
                "sweep.json", {"jobs": [{"job": name, **summary} for name, summary in jobs]}
            )
        print_sweep(jobs)
        print(folder)


def discard_sweep() -> None:
    """Remove the folder of a sweep that failed before its first job."""
    if not HydraConfig.initialized():
        return
    folder = Path(HydraConfig.get().sweep.dir)
    HydraConfig.instance().cfg = None
    if folder.is_dir() and [place.name for place in folder.iterdir()] == [SWEEP_CONFIG]:
        (folder / SWEEP_CONFIG).unlink()
        remove_empty(folder, below=Path.cwd())
