"""A tracker that ends its run, by an exception or by a real signal to its own process."""

from __future__ import annotations

import builtins
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvhybrid.tracking import Tracker


@dataclass(kw_only=True)
class Stopping(Tracker):
    """Acts at its ``at``-th line."""

    how: str
    """The name of a built-in exception, or of a signal."""
    at: int = 2
    num_blocks: int | None = None
    """The pool of the only run that is stopped; None for all."""

    def start(self, config: Mapping[str, Any], folder: Path) -> None:
        self._lines = 0
        self._acts = self.num_blocks in (None, config["pool"]["num_blocks"])

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._lines += 1
        if self._acts and self._lines == self.at:
            if self.how.startswith("SIG"):
                os.kill(os.getpid(), getattr(signal, self.how))
            else:
                raise getattr(builtins, self.how)

    def finish(self, summary: Mapping[str, Any]) -> None: ...
