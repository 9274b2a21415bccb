"""Choices and plug-ins for the help text of a Hydra verb. Does not import Hydra."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from kvhybrid.hydra_app.parts import PARTS
from kvhybrid.plugins import BUILT_IN, Registry

COLUMN = 20


def list_choices(groups: Sequence[str]) -> str:
    """Every choice of every group: the files in conf/ with their first comments, and the plug-ins of other
    distributions."""
    lines = []
    for group in groups:
        lines.append(f"  {group}")
        comments = dict(_files(group))
        part = PARTS.get(group)
        plugins = {} if part is None else dict(_plugins(part.registry))
        lines += [f"    {name:<{COLUMN}}{text}".rstrip() for name, text in sorted({**plugins, **comments}.items())]
    return "\n".join(lines)


def list_names(registries: Mapping[str, Registry[Any]]) -> str:
    """The names of plug-ins without a group: first the built-in ones, then those of other distributions."""
    lines = []
    for key, registry in registries.items():
        built_in = (entry.name for entry in registry.entries() if entry.origin == BUILT_IN)
        lines.append(f"  {key}: {', '.join(built_in)}")
        lines += [f"    {name:<{COLUMN}}{text}" for name, text in _plugins(registry)]
    return "\n".join(lines)


def _files(group: str) -> Iterator[tuple[str, str]]:
    for place in files("kvhybrid.conf").joinpath(group).iterdir():
        if place.name.endswith(".yaml"):
            yield place.name.removesuffix(".yaml"), _first_comment(place.read_text(encoding="utf-8"))


def _plugins(registry: Registry[Any]) -> Iterator[tuple[str, str]]:
    for entry in registry.entries():
        if entry.origin != BUILT_IN:
            yield entry.name, f"{entry.target} ({entry.origin})"


def _first_comment(text: str) -> str:
    comments = (line.removeprefix("# ") for line in text.splitlines() if line.startswith("# "))
    return next((comment for comment in comments if not comment.startswith("@package")), "")
