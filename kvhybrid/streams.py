"""Standard output and error whose failures (closed, broken pipe, full disk) do not end a run."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class _Lasting(io.FileIO):
    """Drops data that cannot be written."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self.lost: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EPIPE:  # not an error: the reader has read what it wanted
                self.lost = error
            return len(data)


@contextmanager
def lasting_streams() -> Iterator[list[str]]:
    """Make standard output and error accept every write. At the end, the list has a line for each that lost data.

    A stream that was replaced, e.g. by a test, is not changed.
    """
    _occupy_closed_descriptors()
    before = sys.stdout, sys.stderr
    lost: list[str] = []
    raw: dict[str, _Lasting] = {}
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        stream: TextIO | None = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(descriptor, "w", closefd=False))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and stream is getattr(sys, f"__{name}__"):
            raw[name] = _Lasting(descriptor)
            setattr(sys, name, _like(stream, raw[name]))
    try:
        yield lost
    finally:
        for name in raw:
            getattr(sys, name).flush()
        sys.stdout, sys.stderr = before
        lost += [f"{name}: {file.lost.strerror}" for name, file in raw.items() if file.lost]


def _occupy_closed_descriptors() -> None:
    """Otherwise the first file that a run opens would become the standard output of its child processes."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def _like(stream: io.TextIOWrapper, raw: _Lasting) -> io.TextIOWrapper:
    stream.flush()
    return io.TextIOWrapper(
        raw if stream.write_through else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
