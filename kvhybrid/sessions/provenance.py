"""``provenance.json``: the environment of a run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any

from kvhybrid import is_compiled
from kvhybrid.managers.kernel import is_native
from kvhybrid.sessions.invocation import Invocation

PACKAGES = ("kvhybrid", "torch", "transformers", "numpy")
PATIENCE = 10.0
"""Timeout for git, in seconds."""


def provenance(invocation: Invocation, backends: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The content of ``provenance.json``. It may identify the machine, so it is not sent to trackers."""
    return {
        "verb": invocation.verb,
        "choices": dict(sorted(invocation.choices.items())),
        "overrides": list(invocation.overrides),
        "versions": {"python": python_version(), **{name: _version(name) for name in PACKAGES}},
        "commit": commit_of(Path(sys.modules["kvhybrid"].__path__[0]).parent),
        "backends": {
            "cache manager": "compiled" if is_compiled else "plain",
            "cache kernel": "native" if is_native else "plain",
            **{purpose: ", ".join(names) for purpose, names in backends.items()},
        },
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit_of(checkout: Path) -> str | None:
    """The commit of a git checkout, with ``-dirty`` if tracked files are modified; None for other folders."""
    if not (checkout / ".git").exists():  # a folder above may belong to another project
        return None
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        found = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
