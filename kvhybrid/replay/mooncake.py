"""Traces in the format of Mooncake: one JSON object per line.

Keys: ``timestamp`` in milliseconds, ``input_length`` and ``output_length`` in tokens, and ``hash_ids``, one id per
512-token block of the prompt, the last of which may be partial. Format and traces: kvcache-ai/Mooncake
(FAST'25), Apache-2.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvhybrid.replay.prefix_numbers import PrefixNumbers
from kvhybrid.replay.record import Record
from kvhybrid.replay.trace import TraceRequest
from kvhybrid.replay.trace_file import TraceFile, numbered

MOST_MILLISECONDS = 10**15
"""Upper bound of timestamps: 30,000 years, enough for any epoch."""


@dataclass(frozen=True, kw_only=True)
class MooncakeTrace(TraceFile):
    """Requests with one id per ``id_tokens`` tokens of the prompt."""

    id_tokens: int = 512

    def sizes(self) -> Sequence[str]:
        return ("id_tokens",)

    @property
    def part_tokens(self) -> int:
        return self.id_tokens

    def records(self) -> Iterator[tuple[int, str]]:
        return self.lines()

    def requests_of(self, record: tuple[int, str], numbers: PrefixNumbers) -> Iterator[TraceRequest]:
        number, text = record
        line = Record.of_json(
            f"{self.path}, line {number}", text, "timestamp, input_length, output_length and hash_ids"
        )
        length = line.count("input_length")
        output = line.count("output_length")
        ids = line.integers("hash_ids", -(-length // self.id_tokens), f"ceil({length} / {self.id_tokens})")
        yield TraceRequest(
            request_id=f"line{number}",
            seconds=line.number("timestamp", "milliseconds", MOST_MILLISECONDS) / 1000,
            num_prompt_tokens=length,
            num_output_tokens=self.capped(output),
            prefix_ids=numbered(line, "hash_ids", ids, numbers),
        )
