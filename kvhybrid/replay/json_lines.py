"""Our own trace format: one JSON object per line, with token ids or with ids of prefixes.

Keys: ``output_tokens``; ``token_ids``, or ``prompt_tokens`` and ``hash_ids``, one id per ``part_tokens`` tokens of
the prompt, the last of which may be partial. Optional: ``time`` and ``think_time`` in seconds, ``session``, and,
with ``token_ids``, ``output_token_ids`` in place of ``output_tokens``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvhybrid.replay.prefix_numbers import PrefixNumbers
from kvhybrid.replay.record import Record, short
from kvhybrid.replay.trace import PrefixIds, TraceRequest
from kvhybrid.replay.trace_file import TraceFile, numbered

KEYS = "output_tokens, and token_ids or hash_ids"


@dataclass(frozen=True, kw_only=True)
class JsonLinesTrace(TraceFile):
    """Requests in the order of their times; without times, in that of the file."""

    part_tokens: int = 16

    sorted_by_time: ClassVar[bool] = True

    def sizes(self) -> Sequence[str]:
        return ("part_tokens",)

    def records(self) -> Iterator[tuple[int, str]]:
        return self.lines()

    def requests_of(self, record: tuple[int, str], numbers: PrefixNumbers) -> Iterator[TraceRequest]:
        number, text = record
        line = Record.of_json(f"{self.path}, line {number}", text, KEYS)
        given = line.content
        session = given.get("session")
        if session is not None and not isinstance(session, str):
            raise line.wrong("session", short(session), "a text")
        seconds = line.number("time", "seconds") if "time" in given else 0.0
        think = line.number("think_time", "seconds") if "think_time" in given else 0.0
        identified = "output_token_ids" in given
        if "token_ids" in given:
            prompt, output, parts = self._with_tokens(line, numbers)
        else:
            prompt, output, parts = self._with_ids(line, numbers)
        yield TraceRequest(
            request_id=f"line{number}",
            seconds=seconds,
            num_prompt_tokens=prompt,
            num_output_tokens=output,
            prefix_ids=parts,
            session=session,
            think_seconds=think,
            output_identified=identified,
        )

    def _with_tokens(self, line: Record, numbers: PrefixNumbers) -> tuple[int, int, PrefixIds]:
        """Prompt tokens, output tokens and prefix ids."""
        tokens = line.integers("token_ids")
        if not tokens:
            raise line.wrong("token_ids", "an empty list", "at least one token id")
        prompt = len(tokens)
        if "output_token_ids" in line.content:
            answer = line.integers("output_token_ids")
            if not answer:
                raise line.wrong("output_token_ids", "an empty list", "at least one token id")
            answer = answer[: self.capped(len(answer))]
            output, tokens = len(answer), tokens + answer
        else:
            output = self.capped(line.count("output_tokens"))
        size = self.part_tokens
        return (
            prompt,
            output,
            numbers.of_contents(tuple(tokens[at : at + size]) for at in range(0, len(tokens), size)),
        )

    def _with_ids(self, line: Record, numbers: PrefixNumbers) -> tuple[int, int, PrefixIds]:
        if "output_token_ids" in line.content:
            raise line.wrong("output_token_ids", "ids without token_ids", "output_tokens")
        line.value("hash_ids")
        if line.content.get("block_size", self.part_tokens) != self.part_tokens:
            found = short(line.content["block_size"])
            raise line.wrong("block_size", found, f"{self.part_tokens}, trace.part_tokens")
        prompt = line.count("prompt_tokens")
        count = -(-prompt // self.part_tokens)
        ids = line.integers("hash_ids", count, f"ceil({prompt} / {self.part_tokens})")
        return prompt, self.capped(line.count("output_tokens")), numbered(line, "hash_ids", ids, numbers)
