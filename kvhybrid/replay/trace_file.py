"""The base classes of traces that are read from files: limits, and what happens to malformed rows."""

from __future__ import annotations

import csv
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kvhybrid.errors import InputError
from kvhybrid.files import UnreadableError, read_lines
from kvhybrid.replay.prefix_numbers import PrefixNumbers, UnequalPrefixError
from kvhybrid.replay.record import Record, RecordError
from kvhybrid.replay.trace import LoadedTrace, PrefixIds, Trace, TraceRequest
from kvhybrid.settings.values import MISSING, at_least

ON_ERROR = ("refuse", "skip")


@dataclass(frozen=True, kw_only=True)
class TraceFile(Trace):
    """The first ``limit`` requests of a file; ``max_new_tokens`` caps what each of them generates.

    ``on_error`` says what happens to a malformed row: ``refuse`` ends the command, ``skip`` leaves the row out and
    counts it.
    """

    path: str = MISSING
    limit: int | None = None
    max_new_tokens: int | None = None
    on_error: str = "refuse"

    accepted: ClassVar[str] = "one JSON object per line"
    """The content of a valid file, for error messages."""
    sorted_by_time: ClassVar[bool] = False
    """Whether requests are put in the order of their arrival; otherwise that of the file is kept."""

    def __post_init__(self) -> None:
        for key in ("limit", "max_new_tokens", *self.sizes()):
            found = getattr(self, key)
            if found is not None:
                at_least(f"trace.{key}", found, 1)
        if self.on_error not in ON_ERROR:
            raise ValueError(f"trace.on_error must be refuse or skip, found {self.on_error!r}")

    def sizes(self) -> Sequence[str]:
        """Further fields that must be at least 1."""
        return ()

    @property
    def place(self) -> Path:
        return Path(self.path)

    @abstractmethod
    def records(self) -> Iterator[Any]:
        """The rows of the file, unparsed. Raises `InputError` for a file that cannot be read."""

    @abstractmethod
    def requests_of(self, record: Any, numbers: PrefixNumbers) -> Iterable[TraceRequest]:
        """The requests of one row. Raises `RecordError` for a malformed one."""

    def read(self) -> list[TraceRequest]:
        return self.load().requests

    def load(self) -> LoadedTrace:
        numbers = PrefixNumbers()
        requests: list[TraceRequest] = []
        skipped = 0
        for record in self.records():
            try:
                requests += list(self.requests_of(record, numbers))
            except RecordError:
                if self.on_error == "refuse":
                    raise
                skipped += 1
            if self.limit and len(requests) >= self.limit and not self.sorted_by_time:
                break
        if self.sorted_by_time:
            requests.sort(key=lambda request: request.seconds)
        if not requests:
            left_out = f" ({skipped} malformed rows were skipped)" if skipped else ""
            raise InputError(f"{self.path}: no requests{left_out}; accepted: {self.accepted}")
        return LoadedTrace(requests[: self.limit], skipped)

    def lines(self) -> Iterator[tuple[int, str]]:
        """Number and text of every line that is not blank."""
        try:
            yield from read_lines(self.path)
        except UnreadableError as error:
            raise self.unreadable(error) from error

    def unreadable(self, error: UnreadableError) -> InputError:
        return InputError(
            f"trace.path: {self.path}: cannot be read: {error}; accepted: a file with {self.accepted}"
        )

    def capped(self, num_tokens: int) -> int:
        """``num_tokens`` to generate, at most ``max_new_tokens``."""
        return min(num_tokens, self.max_new_tokens or num_tokens)


def numbered(record: Record, key: str, ids: Sequence[Any], numbers: PrefixNumbers, scope: str = "") -> PrefixIds:
    """The prefix ids for ``ids``, each of which identifies a whole prefix. Raises `RecordError`.

    ``scope`` separates ids that are local to a file.
    """
    try:
        return numbers.of_ids([(scope, name) for name in ids] if scope else ids)
    except UnequalPrefixError as error:
        raise record.wrong(
            f"{key}[{error.index}]",
            f"{ids[error.index]} after a different id than before",
            "ids that identify a whole prefix, so that an id always follows the same id",
        ) from error


@dataclass(frozen=True, kw_only=True)
class CsvTraceFile(TraceFile):
    """A CSV file that gives the lengths of requests, but not their content.

    The prompts share their first ``shared_tokens`` tokens, such as a system prompt, and nothing else.
    """

    shared_tokens: int = 0
    part_tokens: int = 16

    columns: ClassVar[tuple[str, ...]] = ()
    """Columns that the format needs; others are ignored."""
    sorted_by_time: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("trace.shared_tokens", self.shared_tokens, 0)

    def sizes(self) -> Sequence[str]:
        return ("part_tokens",)

    def records(self) -> Iterator[Record]:
        lines = self.lines()
        _, header = next(lines, (0, ""))
        names = [name.strip() for name in next(csv.reader([header]), [])]
        missing = [name for name in self.columns if name not in names]
        if missing:
            raise InputError(f"{self.path}, line 1: no column {missing[0]!r}; accepted: {self.accepted}")
        for number, text in lines:
            cells = dict(zip(names, (cell.strip() for cell in next(csv.reader([text]))), strict=False))
            yield Record(f"{self.path}, line {number}", cells, ", ".join(self.columns))

    def lengths(self, record: Record, key: str) -> int:
        """A number of tokens, at least 1, written as a whole number."""
        text = record.value(key)
        try:
            found: Any = float(text)
        except ValueError:
            found = text
        whole = int(found) if isinstance(found, float) and found.is_integer() else text
        return Record(record.place, {key: whole}, "").count(key)

    def prompt_ids(self, num_tokens: int, numbers: PrefixNumbers) -> PrefixIds:
        """The prefix ids of a prompt: those of the shared start, then new ones."""
        shared = min(self.shared_tokens, num_tokens) // self.part_tokens
        own = numbers.unshared(-(-num_tokens // self.part_tokens) - shared)
        return np.concatenate((numbers.of_contents(range(shared)), own))


def from_zero(loaded: LoadedTrace) -> LoadedTrace:
    """The same requests, the first of which arrives at 0."""
    first = loaded.requests[0].seconds
    moved = [replace(request, seconds=request.seconds - first) for request in loaded.requests]
    return LoadedTrace(moved, loaded.skipped)
