"""What the help of a Hydra verb lists: every choice of its groups. Imports no Hydra."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files


def list_choices(groups: Sequence[str]) -> str:
    """Every choice of every group, with the comment that opens its file."""
    lines = []
    for group in groups:
        lines.append(f"  {group}")
        for place in sorted(files("kvhybrid.conf").joinpath(group).iterdir(), key=lambda place: place.name):
            if place.name.endswith(".yaml"):
                comment = _first_comment(place.read_text(encoding="utf-8"))
                lines.append(f"    {place.name.removesuffix('.yaml'):<20}{comment}")
    return "\n".join(lines)


def _first_comment(text: str) -> str:
    comments = (line.removeprefix("# ") for line in text.splitlines() if line.startswith("# "))
    return next((comment for comment in comments if not comment.startswith("@package")), "")
