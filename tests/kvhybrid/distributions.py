"""Distributions that a test puts on the path, with real metadata, and nothing built or installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kvhybrid.plugins import Registry


def write_distribution(folder: Path, name: str, modules: Mapping[str, str], points: Mapping[str, str]) -> None:
    """Write the ``modules`` (name to source) of the distribution ``name``, version 1.0, into ``folder``.

    ``points`` are its entry points: group to lines ``name = module:Class``.
    """
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("".join(f"[{group}]\n{lines}\n" for group, lines in points.items()))
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(source)


def isolate(monkeypatch: pytest.MonkeyPatch, *registries: Registry[Any]) -> None:
    """What the test registers or installs is gone afterwards."""
    for registry in registries:
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
        monkeypatch.setattr(registry, "_classes", dict(registry._classes))
        monkeypatch.setattr(registry, "_points", None)
