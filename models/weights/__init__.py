"""Trained weights that come with the package: Hugging Face checkpoint folders, chosen by name.

``runs/train_tiny`` trained them; a token is a byte of text in UTF-8.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent


def names() -> list[str]:
    return sorted(place.parent.name for place in HERE.glob("*/config.json"))


def folder_of(name: str) -> Path:
    """The checkpoint folder of the model called ``name``. Raises ValueError for one that does not come with us."""
    if name not in names():
        raise ValueError(f"no weights called {name!r} come with kvhybrid; accepted: {', '.join(names())}")
    return HERE / name
