"""Traces in the format of Mooncake: one JSON object per line.

Keys: ``timestamp`` in milliseconds, ``input_length`` and ``output_length`` in tokens, and ``hash_ids``, one id per
512-token block of the prompt, the last of which may be partial. Format and traces: kvcache-ai/Mooncake
(FAST'25), Apache-2.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from kvhybrid.errors import InputError
from kvhybrid.files import UnreadableError, parse_json, read_lines
from kvhybrid.replay.trace import Trace, TraceRequest
from kvhybrid.settings.values import MISSING, MOST, at_least

MOST_MILLISECONDS = 10**15
"""Upper bound of timestamps: 30,000 years, enough for any epoch."""
ROOT = -1
"""The predecessor of a prompt's first id."""


@dataclass(frozen=True, kw_only=True)
class MooncakeTrace(Trace):
    """The first ``limit`` requests of a file; ``max_new_tokens`` caps what each of them generates."""

    path: str = MISSING
    limit: int | None = None
    max_new_tokens: int | None = None
    id_tokens: int = 512

    def __post_init__(self) -> None:
        for key in ("limit", "max_new_tokens", "id_tokens"):
            found = getattr(self, key)
            if found is not None:
                at_least(f"trace.{key}", found, 1)

    @property
    def part_tokens(self) -> int:
        return self.id_tokens

    @property
    def place(self) -> Path:
        return Path(self.path)

    def read(self) -> list[TraceRequest]:
        prefixes = _Prefixes()
        requests = [self._request(*line, prefixes) for line in islice(self._lines(), self.limit)]
        if not requests:
            raise InputError(f"{self.path}: no requests; accepted: one JSON object per line")
        return requests

    def _lines(self) -> Iterator[tuple[int, str]]:
        """Number and text of every line that is not blank."""
        try:
            yield from read_lines(self.path)
        except UnreadableError as error:
            raise InputError(
                f"trace.path: {self.path}: cannot be read: {error}; accepted: a file with one JSON object per line"
            ) from error

    def _request(self, number: int, text: str, prefixes: _Prefixes) -> TraceRequest:
        line = _Line(f"{self.path}, line {number}", text)
        length = line.count("input_length")
        output = line.count("output_length")
        ids = line.ids("hash_ids", -(-length // self.id_tokens), f"ceil({length} / {self.id_tokens})")
        return TraceRequest(
            request_id=f"line{number}",
            seconds=line.milliseconds("timestamp") / 1000,
            num_prompt_tokens=length,
            num_output_tokens=min(output, self.max_new_tokens or output),
            prefix_ids=np.array(prefixes.numbers(line, "hash_ids", ids), np.int64),
        )


class _Line:
    """One line of the file, with readers that raise errors for invalid values."""

    def __init__(self, place: str, text: str) -> None:
        self.place = place
        try:
            found = parse_json(text)
        except UnreadableError as error:
            raise InputError(f"{place}: not JSON ({error}); accepted: one JSON object per line") from error
        if not isinstance(found, dict):
            raise InputError(f"{place}: found {_short(found)}; accepted: a JSON object")
        self._content: Mapping[str, Any] = found

    def wrong(self, key: str, found: str, accepted: str) -> InputError:
        return InputError(f"{self.place}: {key}: found {found}; accepted: {accepted}")

    def count(self, key: str) -> int:
        """A number of tokens."""
        found = self._value(key)
        if type(found) is not int or not 1 <= found <= MOST:
            raise self.wrong(key, _short(found), f"a whole number of at least 1 and at most {MOST:,}")
        return found

    def milliseconds(self, key: str) -> float:
        found = self._value(key)
        if type(found) not in (int, float) or not 0 <= found <= MOST_MILLISECONDS:
            most = f"{MOST_MILLISECONDS:,}"
            raise self.wrong(key, _short(found), f"milliseconds, a number of at least 0 and at most {most}")
        return float(found)

    def ids(self, key: str, count: int, reckoning: str) -> list[int]:
        """A list of ``count`` integers; ``reckoning`` says how ``count`` is computed."""
        found = self._value(key)
        if not isinstance(found, list):
            raise self.wrong(key, _short(found), "a list of whole numbers")
        if len(found) != count:
            raise self.wrong(key, f"{len(found)} ids", f"{count}, which is {reckoning}")
        if set(map(type, found)) != {int}:
            at = next(i for i, value in enumerate(found) if type(value) is not int)
            raise self.wrong(f"{key}[{at}]", _short(found[at]), "a whole number")
        return found

    def _value(self, key: str) -> Any:
        if key not in self._content:
            raise self.wrong(key, "nothing", "the keys timestamp, input_length, output_length and hash_ids")
        return self._content[key]


class _Prefixes:
    """Numbers the ids of one file in the order of their first appearance."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}
        """By id: its number, and the number of its predecessor."""

    def numbers(self, line: _Line, key: str, ids: list[int]) -> list[int]:
        """The numbers of a prompt's ids. An id identifies a whole prefix, so its predecessor is always the
        same."""
        found = []
        before = ROOT
        for at, name in enumerate(ids):
            number, follows = self._known.setdefault(name, (len(self._known), before))
            if follows != before:
                raise line.wrong(
                    f"{key}[{at}]",
                    f"{name} after a different id than before",
                    "ids that identify a whole prefix, so that an id always follows the same id",
                )
            found.append(number)
            before = number
        return found


def _short(value: Any) -> str:
    try:
        text = json.dumps(value)
    except RecursionError:
        return "something nested deeply"
    return text if len(text) <= 40 else f"{text[:37]}..."
