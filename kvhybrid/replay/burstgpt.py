"""BurstGPT: CSV with the lengths of requests to an LLM service.

Columns: ``Timestamp`` in seconds, ``Request tokens`` and ``Response tokens``; later releases have ``Session ID``.
A failed request has 0 response tokens. Format and traces: HPMLL/BurstGPT, CC-BY-4.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from kvhybrid.replay.prefix_numbers import PrefixNumbers
from kvhybrid.replay.record import Record
from kvhybrid.replay.trace import LoadedTrace, TraceRequest
from kvhybrid.replay.trace_file import CsvTraceFile, from_zero


@dataclass(frozen=True, kw_only=True)
class BurstGptTrace(CsvTraceFile):
    """Requests at the times of the file; the first arrives at 0. Failed requests are malformed rows."""

    accepted: ClassVar[str] = "CSV with the columns Timestamp, Request tokens and Response tokens"
    columns: ClassVar[tuple[str, ...]] = ("Timestamp", "Request tokens", "Response tokens")

    def requests_of(self, record: Record, numbers: PrefixNumbers) -> Iterator[TraceRequest]:
        length = self.lengths(record, "Request tokens")
        if record.value("Response tokens") == "0":
            raise record.wrong("Response tokens", "0, a failed request", "at least 1, or trace.on_error=skip")
        output = self.lengths(record, "Response tokens")
        text = record.value("Timestamp")
        try:
            time = float(text)
        except ValueError:
            raise record.wrong("Timestamp", repr(text), "a number of seconds") from None
        yield TraceRequest(
            request_id=f"line{record.place.rpartition(' ')[2]}",
            seconds=Record(record.place, {"Timestamp": time}, "").number("Timestamp", "seconds"),
            num_prompt_tokens=length,
            num_output_tokens=self.capped(output),
            prefix_ids=self.prompt_ids(length, numbers),
            session=record.content.get("Session ID") or None,
        )

    def load(self) -> LoadedTrace:
        return from_zero(super().load())
