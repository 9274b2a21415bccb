"""What a tracker sees of a path: its last name. The folders before it say whose machine a run was on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

PATH_KEY = re.compile(r"(?:.*_)?(?:path|file|folder|dir|record)")
"""Keys whose value is a path, also where it does not look like one."""

START = r"(?:[/\\]+|~[\w.-]*[/\\]+|\.{1,2}[/\\]+|[A-Za-z]:[/\\]+)(?=\S)"
"""How a path begins that says where it lies."""
FOLDERS_IN_TEXT = re.compile(rf"(?<![\w/\\.~-])(?:[a-z]+:)?{START}(?:[^'\",;|()\[\]{{}}<>]*[/\\])?")
"""From there to the last separator, since the name of a folder may have spaces."""


def without_folders(value: Any, key: str = "") -> Any:
    """``value`` with every path in it cut to its last name, in nested mappings and lists too.

    A text is a path where ``key`` says so or it begins like one. Any other text loses the folders that it names.
    """
    if isinstance(value, Mapping):
        return {name: without_folders(entry, str(name)) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_folders(entry, key) for entry in value]
    if isinstance(value, PurePath):
        return value.name
    if not isinstance(value, str):
        return value
    if PATH_KEY.fullmatch(key) or re.match(START, value):
        return _last_name(value)
    return FOLDERS_IN_TEXT.sub("", value)


def _last_name(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]
