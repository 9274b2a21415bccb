"""Weights & Biases: the same figures as a wandb run, offline unless the environment says otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvhybrid.tracking.base import Tracker, TrackerError
from kvhybrid.tracking.paths import without_folders


@dataclass(kw_only=True)
class WandbTracker(Tracker):
    """Keeps the run under ``wandb/`` in the run folder; ``wandb sync`` uploads it later.

    A ``WANDB_MODE`` in the environment (online, offline, shared, disabled) wins over offline.
    """

    project: str = "kvhybrid"
    name: str | None = None
    """Name of the run; wandb makes one up where it is not given."""
    tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._run: Any = None

    def start(self, config: Mapping[str, Any], folder: Path) -> None:
        try:
            import wandb
        except ImportError as error:
            raise TrackerError(f"wandb cannot be imported: {error}; choose tracking=jsonl") from error
        quiet = wandb.Settings(
            host="",  # else wandb asks the machine for its name
            silent=True,
            quiet=True,
            console="off",
            show_errors=False,
            show_warnings=False,
            show_info=False,
            disable_git=True,
            disable_code=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        mode: Any = os.environ.get("WANDB_MODE") or "offline"
        self._run = wandb.init(
            project=self.project,
            name=without_folders(self.name),
            tags=without_folders(self.tags),
            config=dict(config),
            dir=folder,
            mode=mode,
            reinit="create_new",
            settings=quiet,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._run.summary.update(dict(summary))
        self._run.finish()
