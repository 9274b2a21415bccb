"""The folder of one run. Every file is written beside its place and then renamed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from math import isfinite
from pathlib import Path
from typing import Any

from kvhybrid.errors import InputError
from kvhybrid.files import beside

OWN_FILES = ("config.yaml", "summary.json", "outputs.jsonl", "hits.png", "wandb")
"""What a run writes into its folder, beside the file that a tracker names."""


def finite(content: Any) -> Any:
    """The same content, with None for numbers that JSON does not have: NaN and infinities."""
    if isinstance(content, Mapping):
        return {key: finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not isfinite(content) else content


class RunFolder:
    """A folder that one run fills."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def require_empty(self) -> None:
        """Raise `InputError` where the folder already holds something else than what Hydra writes before a run."""
        if self.path.is_dir() and not all(map(_is_hydras, self.path.iterdir())):
            raise InputError(f"the run folder must be new or empty, found files in {self.path}")

    def refuse_own(self, key: str, path: str) -> None:
        """Raise `InputError` where ``path`` is one of the files that the run writes here."""
        place = Path(path).resolve()
        if place.parent == self.path.resolve() and place.name in OWN_FILES:
            raise InputError(f"{key}: the run itself writes {place.name} into its folder; accepted: another name")

    def create(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)

    def beside(self, name: str) -> AbstractContextManager[Path]:
        """A path to write to; it becomes ``name`` if the block ends well and is removed if it does not."""
        return beside(self.path / name)

    def write_text(self, name: str, text: str) -> None:
        with self.beside(name) as partial:
            partial.write_text(text, encoding="utf-8")

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        self.write_text(name, json.dumps(finite(content), indent=2, allow_nan=False) + "\n")


def _is_hydras(place: Path) -> bool:
    """Whether it is what ``hydra/job_logging`` or ``hydra.output_subdir`` asks for: a log file or a folder."""
    if place.is_dir():
        return {file.name for file in place.iterdir()} == {"config.yaml", "hydra.yaml", "overrides.yaml"}
    return place.is_file() and place.suffix == ".log"


def remove_empty(folder: Path, *, below: Path) -> None:
    """Remove ``folder`` and its parents up to ``below``, as far as they are empty."""
    folder, below = folder.absolute(), below.absolute()
    while folder != below and below in folder.parents and folder.is_dir():
        if any(folder.iterdir()):
            return
        folder.rmdir()
        folder = folder.parent
