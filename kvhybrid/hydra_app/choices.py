"""Choices and plug-ins for the help text of a Hydra verb. Does not import Hydra."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
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
            summary = _summary(entry.target)
            yield entry.name, f"{summary} " * bool(summary) + f"({entry.target}, {entry.origin})"


def _summary(target: str) -> str:
    """The first line of the docstring of ``module:Class``, read from its source: help imports no plug-ins."""
    module, _, name = target.partition(":")
    try:
        tree = ast.parse(_source(*module.split(".")))
    except (ImportError, OSError, ValueError, SyntaxError):
        return ""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return (ast.get_docstring(classes[0]) or "").partition("\n")[0] if classes else ""


def _source(top: str, *below: str) -> str:
    """The source of a module. Raises OSError if it has none."""
    found = find_spec(top)
    places = [] if found is None else [Path(found.origin or "")]
    if found is not None and below:
        folders = [Path(folder, *below) for folder in found.submodule_search_locations or ()]
        places = [place for folder in folders for place in (folder.with_suffix(".py"), folder / "__init__.py")]
    place = next((place for place in places if place.is_file()), None)
    if place is None:
        raise FileNotFoundError(top)
    return place.read_text(encoding="utf-8")


def _first_comment(text: str) -> str:
    comments = (line.removeprefix("# ") for line in text.splitlines() if line.startswith("# "))
    return next((comment for comment in comments if not comment.startswith("@package")), "")
