"""Conversations in the format of ShareGPT: a JSON list of objects with ``conversations``, a list of messages.

A message has ``from`` (``human``, ``gpt``, ``system`` and others) and ``value``, its text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kvhybrid.errors import InputError
from kvhybrid.files import UnreadableError, parse_json, read_text
from kvhybrid.replay.prefix_numbers import PrefixNumbers, Segment
from kvhybrid.replay.record import Record, short
from kvhybrid.replay.trace import TraceRequest
from kvhybrid.replay.trace_file import TraceFile
from kvhybrid.settings.values import at_least

ANSWERS = ("gpt", "assistant", "chatgpt", "bard", "bing")
"""Names of the model as the sender of a message."""


@dataclass(frozen=True, kw_only=True)
class ShareGptTrace(TraceFile):
    """One request per answer of the model: its prompt is the conversation before it, the answers included.

    A message of c characters counts as ceil(c / ``chars_per_token``) tokens. Conversations start
    ``conversation_gap`` seconds apart, and their turns follow each other ``turn_gap`` seconds apart.
    """

    chars_per_token: float = 4.0
    conversation_gap: float = 1.0
    turn_gap: float = 30.0
    part_tokens: int = 16

    accepted: ClassVar[str] = "a JSON list of objects with conversations"
    sorted_by_time: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("trace.chars_per_token", self.chars_per_token, 0.1, 1000)
        at_least("trace.conversation_gap", self.conversation_gap, 0)
        at_least("trace.turn_gap", self.turn_gap, 0)

    def sizes(self) -> Sequence[str]:
        return ("part_tokens",)

    def records(self) -> Iterator[tuple[int, Any]]:
        try:
            found = parse_json(read_text(self.path))
        except UnreadableError as error:
            raise self.unreadable(error) from error
        if not isinstance(found, list):
            raise InputError(f"{self.path}: found {short(found)}; accepted: {self.accepted}")
        yield from enumerate(found)

    def requests_of(self, record: tuple[int, Any], numbers: PrefixNumbers) -> Iterator[TraceRequest]:
        index, found = record
        conversation = Record.of_object(f"{self.path}, conversation {index + 1}", found, "conversations")
        messages = self._messages(conversation)
        turns = [at for at, (answers, _) in enumerate(messages) if answers and at]
        parts = numbers.of_segments([segment for _, segment in messages], self.part_tokens)
        lengths = [segment.num_tokens for _, segment in messages]
        for turn, at in enumerate(turns):
            prompt = sum(lengths[:at])
            output = self.capped(lengths[at])
            identified = output == lengths[at]
            yield TraceRequest(
                request_id=f"conversation{index + 1}-turn{turn + 1}",
                seconds=index * self.conversation_gap + turn * self.turn_gap,
                num_prompt_tokens=prompt,
                num_output_tokens=output,
                prefix_ids=numbers.start_of(parts, prompt + output if identified else prompt, self.part_tokens),
                session=f"conversation{index + 1}",
                think_seconds=self.turn_gap if turn else 0.0,
                output_identified=identified,
            )

    def _messages(self, conversation: Record) -> list[tuple[bool, Segment]]:
        """Per message: whether the model wrote it, and its tokens."""
        found = conversation.value("conversations")
        if not isinstance(found, list):
            raise conversation.wrong("conversations", short(found), "a list of messages")
        messages = []
        for number, entry in enumerate(found):
            message = Record.of_object(f"{conversation.place}, message {number + 1}", entry, "from and value")
            sender, text = message.value("from"), message.value("value")
            if not isinstance(text, str):
                raise message.wrong("value", short(text), "a text")
            tokens = max(1, int(-(-len(text) // self.chars_per_token)))
            messages.append((sender in ANSWERS, Segment((sender, text), tokens)))
        return messages
