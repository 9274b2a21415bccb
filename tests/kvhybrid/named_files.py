"""What lies where a file is expected: every kind of thing that is none."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NO_FILES = {
    "FIFO": "a FIFO",
    "socket": "a socket",
    "device": "a device",
    "folder": "a folder",
    "link to a FIFO": "a FIFO",
    "link to a folder": "a folder",
}
"""What it is called in a refusal."""


@contextmanager
def no_file(kind: str, place: Path) -> Iterator[None]:
    """Put it at ``place``; it must be there and unchanged in the end."""
    target = place.with_name("behind the link") if kind.startswith("link") else place
    opened: list[int] = []
    if kind.endswith("FIFO"):
        os.mkfifo(target)
    elif kind.endswith("folder"):
        target.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(os.path.relpath(target))
    else:
        opened += os.openpty()
        place.symlink_to(os.ttyname(opened[1]))
    if target != place:
        place.symlink_to(target)
    before = os.lstat(place), os.stat(place)
    try:
        yield
        after = os.lstat(place), os.stat(place)
        assert [(s.st_ino, s.st_mode) for s in after] == [(s.st_ino, s.st_mode) for s in before]
    finally:
        for end_of_terminal in opened:
            os.close(end_of_terminal)
