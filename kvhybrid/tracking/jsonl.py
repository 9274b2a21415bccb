"""``metrics.jsonl``: one JSON object a step, in the run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from kvhybrid.run_folder import finite, partial_name
from kvhybrid.tracking.base import Tracker


@dataclass(kw_only=True)
class JsonLinesTracker(Tracker):
    """Writes whole lines as the steps end, under a partial name that `finish` drops."""

    file: str = "metrics.jsonl"

    def __post_init__(self) -> None:
        self._lines: IO[str] | None = None
        self._place = Path()

    def start(self, config: Mapping[str, Any], folder: Path) -> None:
        self._place = folder / self.file
        self._lines = partial_name(self._place).open("w", encoding="utf-8", buffering=1)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self._lines is not None
        self._lines.write(json.dumps(finite({"step": step, **metrics})) + "\n")

    def finish(self, summary: Mapping[str, Any]) -> None:
        assert self._lines is not None
        self._lines.close()
        partial_name(self._place).replace(self._place)
