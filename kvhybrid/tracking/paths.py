"""Reduces paths to their last components for trackers, since folder names may identify machine and user."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

PATH_KEY = re.compile(r"(?:.*_)?(?:path|file|folder|dir|record)")
"""Keys whose value is a path even if it does not look like one."""

START = r"(?:[/\\]+|~[\w.-]*[/\\]+|\.{1,2}[/\\]+|[A-Za-z]:[/\\]+)(?=\S)"
"""Starts of absolute and home-relative paths."""
FOLDERS_IN_TEXT = re.compile(rf"(?<![\w/\\.~-])(?:[a-z]+:)?{START}(?:[^'\",;|()\[\]{{}}<>]*[/\\])?")
"""From such a start to the last separator, since folder names may have spaces."""


def without_folders(value: Any, key: str = "") -> Any:
    """``value`` with every path reduced to its last component, also in nested mappings and lists.

    Text is a path if ``key`` says so or if it starts like one. From other text, folders of paths are removed.
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
