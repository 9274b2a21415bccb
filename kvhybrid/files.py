"""Files: those that a user names, which are regular ones or links to them, and new ones that appear whole.

Opening a FIFO waits for its other end, a device may never end, and renaming a new file onto either replaces it.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from kvhybrid.errors import InputError

MOST_BYTES = 1 << 30
"""Of a file that is read as a whole."""
MOST_LINE_BYTES = 1 << 28
"""Of a line, where a file is read line by line: a recorded run of a day is one."""

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
"""What is no regular file, by the type in its mode."""


class UnreadableError(ValueError):
    """A file that cannot be read, or a text that cannot be parsed; the message is the reason, in a few words."""


@contextmanager
def _opened(path: Path | str) -> Iterator[BinaryIO]:
    """A regular file, open to read. Raises `UnreadableError`, also for what fails while it is read."""
    try:
        if kind := _kind(path):
            raise UnreadableError(f"it is {kind}")
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from error


def _kind(path: Path | str) -> str | None:
    """What ``path`` is in place of a regular file. Raises OSError where there is nothing."""
    try:
        return KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, str(error)) from error


def read_bytes(path: Path | str) -> bytes:
    """The content of a regular file. Raises `UnreadableError`."""
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = b"" if size > MOST_BYTES else file.read(MOST_BYTES + 1)
    if max(size, len(content)) > MOST_BYTES:
        raise UnreadableError(f"it has more than {MOST_BYTES:,} bytes")
    return content


def read_text(path: Path | str) -> str:
    """The text of a regular file in UTF-8, without a byte-order mark. Raises `UnreadableError`."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"byte {error.start} is not UTF-8") from error


def read_lines(path: Path | str) -> Iterator[tuple[int, str]]:
    """Number from 1 and text of every line that is not blank, as `read_text` reads. Raises `UnreadableError`."""
    with _opened(path) as file:
        number = 0
        while line := file.readline(MOST_LINE_BYTES + 1):
            number += 1
            if len(line) > MOST_LINE_BYTES:
                raise UnreadableError(f"line {number} has more than {MOST_LINE_BYTES:,} bytes")
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise UnreadableError(f"line {number}, byte {error.start} is not UTF-8") from error
            if text.strip():
                yield number, text


def parse_json(text: str) -> Any:
    """What ``text`` says. Raises `UnreadableError`, also for nesting and numbers that Python does not take."""
    try:
        return json.loads(text)
    except RecursionError:
        raise UnreadableError("nested too deeply") from None
    except ValueError as error:
        raise UnreadableError(str(error)) from error


def output_file(key: str, path: Path | str) -> Path:
    """The regular file that ``path`` names, there or new, behind all links.

    Raises `InputError`, which names ``key``, for anything else and where its folder is missing.
    """
    try:
        kind = _kind(path)
    except FileNotFoundError:
        kind = None
    except OSError as error:
        raise InputError(f"{key}: {path}: {error.strerror}; accepted: a file to write") from error
    if kind:
        raise InputError(f"{key} must be a file to write, found {kind}: {path}")
    place = Path(path).resolve()
    if not place.parent.is_dir():
        raise InputError(f"{key}: no such folder: {place.parent}")
    return place


def partial_name(place: Path) -> Path:
    """Where a file is written until it is whole."""
    return place.with_name(f".{place.name}.partial")


@contextmanager
def beside(place: Path) -> Iterator[Path]:
    """A path to write to; it becomes ``place`` if the block ends well and is removed if it does not."""
    partial = partial_name(place)
    try:
        yield partial
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)
