"""One record of a trace file, with readers that raise one clear line for invalid values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kvhybrid.errors import InputError
from kvhybrid.files import UnreadableError, parse_json
from kvhybrid.settings.values import MOST

MOST_SECONDS = 10**12
"""Upper bound of times: 30,000 years, enough for any epoch."""


class RecordError(InputError):
    """A malformed record; the others of its file may be valid."""


class Record:
    """The values of one record by key. ``place`` names its file and line in errors."""

    def __init__(self, place: str, content: Mapping[str, Any], keys: str) -> None:
        """``keys`` lists the keys that the format needs."""
        self.place = place
        self.content = content
        self._keys = keys

    @classmethod
    def of_json(cls, place: str, text: str, keys: str) -> Record:
        """Parse a JSON object. Raises `RecordError`."""
        try:
            found = parse_json(text)
        except UnreadableError as error:
            raise RecordError(f"{place}: not JSON ({error}); accepted: one JSON object per line") from error
        return cls.of_object(place, found, keys)

    @classmethod
    def of_object(cls, place: str, found: Any, keys: str) -> Record:
        """A value that must be a JSON object. Raises `RecordError`."""
        if not isinstance(found, dict):
            raise RecordError(f"{place}: found {short(found)}; accepted: a JSON object")
        return cls(place, found, keys)

    def wrong(self, key: str, found: str, accepted: str) -> RecordError:
        return RecordError(f"{self.place}: {key}: found {found}; accepted: {accepted}")

    def value(self, key: str) -> Any:
        if key not in self.content:
            raise self.wrong(key, "nothing", f"the keys {self._keys}")
        return self.content[key]

    def count(self, key: str) -> int:
        """A number of tokens, at least 1."""
        found = self.value(key)
        if type(found) is not int or not 1 <= found <= MOST:
            raise self.wrong(key, short(found), f"a whole number of at least 1 and at most {MOST:,}")
        return found

    def number(self, key: str, unit: str, most: int = MOST_SECONDS) -> float:
        """A time of at least 0, in ``unit``."""
        found = self.value(key)
        if type(found) not in (int, float) or not 0 <= found <= most:
            raise self.wrong(key, short(found), f"{unit}, a number of at least 0 and at most {most:,}")
        return float(found)

    def integers(self, key: str, count: int | None = None, reckoning: str = "") -> list[int]:
        """A list of integers, ``count`` of them if given; ``reckoning`` says how ``count`` is computed."""
        found = self.value(key)
        if not isinstance(found, list):
            raise self.wrong(key, short(found), "a list of whole numbers")
        if count is not None and len(found) != count:
            raise self.wrong(key, f"{len(found)} ids", f"{count}, which is {reckoning}")
        if not set(map(type, found)) <= {int}:
            at = next(i for i, value in enumerate(found) if type(value) is not int)
            raise self.wrong(f"{key}[{at}]", short(found[at]), "a whole number")
        return found


def short(value: Any) -> str:
    """``value`` as JSON, at most 40 characters."""
    try:
        text = json.dumps(value)
    except RecursionError:
        return "something nested deeply"
    return text if len(text) <= 40 else f"{text[:37]}..."
