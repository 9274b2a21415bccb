"""Trained weights that come with the package: Hugging Face checkpoint folders, selected by name.

``runs/train_tiny`` trained them; a token is one byte of UTF-8 text.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent


def names() -> list[str]:
    return sorted(place.parent.name for place in HERE.glob("*/config.json"))


def folder_of(name: str) -> Path:
    """The checkpoint folder of the model called ``name``. Raises ValueError for an unknown name."""
    if name not in names():
        raise ValueError(f"no weights called {name!r} come with kvhybrid; accepted: {', '.join(names())}")
    return HERE / name
