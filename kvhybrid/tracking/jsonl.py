"""``metrics.jsonl``: one JSON object a step, in the run folder."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvhybrid.tracking.base import Tracker


@dataclass(kw_only=True)
class JsonLinesTracker(Tracker):
    """Writes each line as its step ends. The file holds whole lines at any time, whatever happens to the run."""

    file: str = "metrics.jsonl"

    def __post_init__(self) -> None:
        self._lines: io.FileIO | None = None

    def start(self, config: Mapping[str, Any], folder: Path) -> None:
        self._lines = io.FileIO(folder / self.file, "xb")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self._lines is not None
        begin = self._lines.tell()
        line = (json.dumps({"step": step, **metrics}) + "\n").encode()
        try:
            while line:
                line = line[self._lines.write(line) :]
        except OSError:
            self._lines.truncate(begin)  # a full disk takes part of a line
            self._lines.close()
            raise

    def finish(self, summary: Mapping[str, Any]) -> None:
        assert self._lines is not None
        self._lines.close()
