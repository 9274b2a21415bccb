"""The folder of one run. Every file is written beside its place and then renamed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

from kvhybrid.errors import InputError


def partial_name(place: Path) -> Path:
    """Where a file is written until it is whole."""
    return place.with_name(f".{place.name}.partial")


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
        """Raise `InputError` where the folder already holds something."""
        if self.path.is_dir() and any(self.path.iterdir()):
            raise InputError(f"the run folder must be new or empty, found files in {self.path}")

    def create(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def beside(self, name: str) -> Iterator[Path]:
        """A path to write to; it becomes ``name`` if the block ends well and is removed if it does not."""
        partial = partial_name(self.path / name)
        try:
            yield partial
            partial.replace(self.path / name)
        finally:
            partial.unlink(missing_ok=True)

    def write_text(self, name: str, text: str) -> None:
        with self.beside(name) as partial:
            partial.write_text(text, encoding="utf-8")

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        self.write_text(name, json.dumps(finite(content), indent=2, allow_nan=False) + "\n")


def remove_empty(folder: Path, *, below: Path) -> None:
    """Remove ``folder`` and its parents up to ``below``, as far as they are empty."""
    folder, below = folder.absolute(), below.absolute()
    while folder != below and below in folder.parents and folder.is_dir():
        if any(folder.iterdir()):
            return
        folder.rmdir()
        folder = folder.parent
