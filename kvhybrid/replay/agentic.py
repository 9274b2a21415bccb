"""Recorded agent sessions: a JSON object per file, or a folder of such files.

A file has ``block_size`` and ``requests`` with ``t`` in seconds, ``in`` and ``out`` in tokens, and ``hash_ids``,
one id per full block, local to the file. Format and sessions: callanjfox/kv-cache-tester, Apache-2.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kvhybrid.errors import InputError
from kvhybrid.files import UnreadableError, parse_json, read_text
from kvhybrid.replay.prefix_numbers import PrefixNumbers
from kvhybrid.replay.record import Record, short
from kvhybrid.replay.trace import TraceRequest
from kvhybrid.replay.trace_file import TraceFile, numbered

SUFFIXES = (".json", ".json.gz", ".json.zst")
KEYS = "t, in, out and hash_ids"


@dataclass(frozen=True, kw_only=True)
class AgenticTrace(TraceFile):
    """The sessions of a folder, or of one file, in the order of their requests' times.

    ``limit`` counts requests of all sessions. Every session starts ``session_gap`` seconds after the previous one.
    """

    block_tokens: int = 64
    session_gap: float = 0.0

    accepted: ClassVar[str] = "a JSON object with block_size and requests, or a folder of such files"
    sorted_by_time: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.session_gap <= 10**9:
            raise ValueError(f"trace.session_gap must be at least 0 seconds, found {self.session_gap}")

    def sizes(self) -> Sequence[str]:
        return ("block_tokens",)

    @property
    def part_tokens(self) -> int:
        return self.block_tokens

    def records(self) -> Iterator[tuple[str, float, float, Record]]:
        """The session's name, its start, the time between its previous request and this one, and the request."""
        for index, place in enumerate(self._files()):
            try:
                session = parse_json(read_text(place))
            except UnreadableError as error:
                raise InputError(f"{place}: cannot be read: {error}; accepted: {self.accepted}") from error
            name = place.name.split(".")[0]
            before = 0.0
            for number, request in enumerate(self._requests(place, session), start=1):
                row = Record(f"{place}, request {number}", request if isinstance(request, dict) else {}, KEYS)
                seconds = row.content.get("t", before)
                gap = float(seconds) - before if isinstance(seconds, (int, float)) else 0.0
                before += gap
                yield name, index * self.session_gap, max(0.0, gap), row

    def _files(self) -> list[Path]:
        if not self.place.is_dir():
            return [self.place]
        found = sorted(place for place in self.place.iterdir() if place.name.endswith(SUFFIXES))
        if not found:
            raise InputError(f"trace.path: {self.path}: no .json files; accepted: {self.accepted}")
        return found

    def _requests(self, place: Path, session: Any) -> list[Any]:
        content = session if isinstance(session, dict) else {}
        requests, block = content.get("requests"), content.get("block_size")
        if not isinstance(requests, list):
            raise InputError(f"{place}: no list of requests; accepted: {self.accepted}")
        if block != self.block_tokens:
            raise InputError(
                f"{place}: block_size: found {short(block)}; accepted: {self.block_tokens}, trace.block_tokens"
            )
        return requests

    def requests_of(
        self, record: tuple[str, float, float, Record], numbers: PrefixNumbers
    ) -> Iterator[TraceRequest]:
        session, start, gap, row = record
        length = row.count("in")
        output = row.count("out")
        full = length // self.block_tokens
        ids = row.integers("hash_ids", full, f"floor({length} / {self.block_tokens})")
        seconds = row.number("t", "seconds")
        think = row.number("think_time", "seconds") if "think_time" in row.content else gap
        parts = numbered(row, "hash_ids", ids, numbers, scope=session)
        if length % self.block_tokens:
            parts = np.concatenate((parts, numbers.unshared(1)))  # a partial block has no id
        yield TraceRequest(
            request_id=f"{session}-{row.place.rpartition(' ')[2]}",
            seconds=start + seconds,
            num_prompt_tokens=length,
            num_output_tokens=self.capped(output),
            prefix_ids=parts,
            session=session,
            think_seconds=think,
        )
