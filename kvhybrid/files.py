"""Reading files that a user names, and writing files atomically.

Only regular files and links to them are accepted: opening a FIFO waits for its other end, a device may never end,
and renaming a new file onto either would replace it.
"""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from kvhybrid.errors import InputError

MOST_BYTES = 1 << 30
"""Size limit of a file that is read as a whole."""
MOST_LINE_BYTES = 1 << 28
"""Size limit of a line of a file that is read line by line; a recording of a whole day is one line."""

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
"""Names of file types other than regular files, by the type in the mode."""


class UnreadableError(ValueError):
    """A file that cannot be read, or text that cannot be parsed; the message is the reason in a few words."""


@contextmanager
def _opened(path: Path | str) -> Iterator[BinaryIO]:
    """Open a regular file for reading; ``.gz`` and ``.zst`` are decompressed.

    Raises `UnreadableError`, also for errors while it is read.
    """
    try:
        if kind := _kind(path):
            raise UnreadableError(f"it is {kind}")
        with open(path, "rb") as file:
            yield _decompressed(file, Path(path).suffix)
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from error
    except (EOFError, zlib.error) as error:
        raise UnreadableError(f"not a complete gzip file ({error})") from error


def _decompressed(file: BinaryIO, suffix: str) -> BinaryIO:
    if suffix == ".gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    if suffix == ".zst":
        try:
            import zstandard
        except ImportError as error:
            raise UnreadableError("a .zst file needs the package zstandard: pip install zstandard") from error
        return cast(BinaryIO, io.BufferedReader(_ZstdReader(zstandard, file)))
    return file


class _ZstdReader(io.RawIOBase):
    """The content of a zstd file; errors of the library are raised as OSError."""

    def __init__(self, zstandard: Any, file: BinaryIO) -> None:
        self._failure = zstandard.ZstdError
        self._content = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            found: int = self._content.readinto(buffer)
        except self._failure as error:
            raise OSError(f"not a zstd file ({error})") from error
        return found


def _kind(path: Path | str) -> str | None:
    """The type of ``path`` if it is not a regular file, else None. Raises OSError if it does not exist."""
    try:
        return KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, str(error)) from error


def read_bytes(path: Path | str) -> bytes:
    """The content of a regular file. Raises `UnreadableError`."""
    with _opened(path) as file:
        size = os.stat(path).st_size
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
    """Yield number, from 1, and text of every line that is not blank, like `read_text`. Raises
    `UnreadableError`."""
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
    """Parse JSON. Raises `UnreadableError`, also for nesting and numbers beyond Python's limits."""
    try:
        return json.loads(text)
    except RecursionError:
        raise UnreadableError("nested too deeply") from None
    except ValueError as error:
        raise UnreadableError(str(error)) from error


def output_file(key: str, path: Path | str) -> Path:
    """Resolve ``path`` to an existing or new regular file, following links.

    Raises `InputError`, with ``key`` in the message, for other file types and if the folder does not exist.
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
    """The temporary path that a file is written to until it is complete."""
    return place.with_name(f".{place.name}.partial")


@contextmanager
def atomic_path(place: Path) -> Iterator[Path]:
    """A temporary path that is renamed to ``place`` if the block succeeds, and removed otherwise."""
    partial = partial_name(place)
    try:
        yield partial
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)
