"""The Azure LLM inference traces of 2023 and 2024: CSV with the lengths of requests.

Columns: ``TIMESTAMP``, a date and time of day, ``ContextTokens`` and ``GeneratedTokens``. Format and traces:
Azure/AzurePublicDataset, CC-BY.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import ClassVar

from kvhybrid.replay.prefix_numbers import PrefixNumbers
from kvhybrid.replay.record import Record
from kvhybrid.replay.trace import LoadedTrace, TraceRequest
from kvhybrid.replay.trace_file import CsvTraceFile, from_zero

TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)?")


@dataclass(frozen=True, kw_only=True)
class AzureTrace(CsvTraceFile):
    """Requests at the times of the file; the first arrives at 0."""

    accepted: ClassVar[str] = "CSV with the columns TIMESTAMP, ContextTokens and GeneratedTokens"
    columns: ClassVar[tuple[str, ...]] = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

    def requests_of(self, record: Record, numbers: PrefixNumbers) -> Iterator[TraceRequest]:
        length = self.lengths(record, "ContextTokens")
        output = self.lengths(record, "GeneratedTokens")
        seconds = _seconds(record)
        yield TraceRequest(
            request_id=f"line{record.place.rpartition(' ')[2]}",
            seconds=seconds,
            num_prompt_tokens=length,
            num_output_tokens=self.capped(output),
            prefix_ids=self.prompt_ids(length, numbers),
        )

    def load(self) -> LoadedTrace:
        return from_zero(super().load())


def _seconds(record: Record) -> float:
    """Seconds since 1970. Times without a zone are UTC."""
    text = record.value("TIMESTAMP")
    match = TIME.fullmatch(text)
    try:
        if match is None:
            raise ValueError(text)
        whole = datetime.fromisoformat(match[1] + (match[3] or "+00:00").replace("Z", "+00:00"))
        return whole.astimezone(timezone.utc).timestamp() + float(match[2] or 0)
    except (ValueError, OverflowError):
        raise record.wrong("TIMESTAMP", repr(text), "a time such as 2023-11-16 18:15:46.6805900") from None
