"""``metrics.jsonl`` in the run folder: one JSON object per step."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvhybrid.run_folder import OWN_FILES, finite
from kvhybrid.tracking.base import Tracker, TrackerError


@dataclass(kw_only=True)
class JsonLinesTracker(Tracker):
    """Writes a line at the end of each step. The file has only whole lines at any time, even if the run is
    killed."""

    file: str = "metrics.jsonl"

    def __post_init__(self) -> None:
        hidden = not self.file or self.file.startswith(".")
        if hidden or Path(self.file).name != self.file or self.file.lower() in OWN_FILES:
            raise ValueError(
                f"tracking.jsonl.file must be a file name in the run folder other than {', '.join(OWN_FILES)}, "
                f"found {self.file!r}"
            )
        self._lines: io.FileIO | None = None

    def start(self, config: Mapping[str, Any], folder: Path) -> None:
        try:
            self._lines = io.FileIO(folder / self.file, "xb")
        except FileExistsError as error:
            raise TrackerError(f"{folder / self.file} already exists") from error

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self._lines is not None
        begin = self._lines.tell()
        line = (json.dumps(finite({"step": step, **metrics})) + "\n").encode()
        try:
            while line:
                line = line[self._lines.write(line) :]
        except OSError:
            self._lines.truncate(begin)  # on a full disk, part of a line may have been written
            self._lines.close()
            raise

    def finish(self, summary: Mapping[str, Any]) -> None:
        assert self._lines is not None
        self._lines.close()
