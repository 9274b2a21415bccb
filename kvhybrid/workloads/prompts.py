"""Prompts in words: the lines of a file, each with the text that the model goes on with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvhybrid.errors import InputError
from kvhybrid.text import TextCodec
from kvhybrid.workloads.base import Answer, PromptList, TokenIds, Traffic, Workload, WorkloadRequest


@dataclass(frozen=True)
class Line:
    """A prompt and where it stands."""

    number: int
    text: str
    token_ids: TokenIds

    @property
    def request_id(self) -> str:
        return f"line{self.number}"


@dataclass(kw_only=True)
class Prompts(Workload):
    """The lines of the text file ``path``, in UTF-8, sent all at once. Blank lines are left out."""

    path: str = "???"
    max_new_tokens: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        self._lines: list[Line] = []
        self._codec: TextCodec | None = None

    def prepare(self, codec: Callable[[], TextCodec]) -> None:
        lines = self._read()
        self._codec = codec()
        self._lines = [Line(number, text, self._codec.encode(text)) for number, text in lines]
        empty = [line.number for line in self._lines if not line.token_ids]
        if empty:
            raise InputError(f"workload.path: {self.path}: line {empty[0]}: the tokenizer makes no token of it")

    @property
    def num_requests(self) -> int:
        return len(self._lines)

    @property
    def longest_request(self) -> int:
        return len(self._longest.token_ids) + self.max_new_tokens

    @property
    def longest_name(self) -> str:
        return (
            f"workload.path: {self.path}: line {self._longest.number} with "
            f"workload.max_new_tokens={self.max_new_tokens}"
        )

    @property
    def eos_token_id(self) -> int | None:
        return self._codec.eos_token_id if self._codec else None

    def traffic(self, vocab_size: int) -> Traffic:
        """Raises InputError before `prepare`, and where the tokenizer knows tokens that the model does not."""
        if self._codec is None:
            raise InputError("prompts become token ids only in `prepare`")
        highest = max(token for line in self._lines for token in line.token_ids)
        if highest >= vocab_size:
            raise InputError(f"the tokenizer gives token id {highest}, but the model's end at {vocab_size - 1}")
        return PromptTraffic(self._lines, self._codec, self.max_new_tokens)

    @property
    def _longest(self) -> Line:
        return max(self._lines, key=lambda line: len(line.token_ids))

    def _read(self) -> list[tuple[int, str]]:
        """The lines that are not blank, numbered from 1."""
        try:
            text = Path(self.path).read_text(encoding="utf-8-sig")
        except OSError as error:
            raise InputError(f"workload.path: {self.path}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise InputError(f"workload.path: {self.path}: byte {error.start} is not UTF-8") from error
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        if not lines:
            raise InputError(f"workload.path: {self.path}: no prompt in it; accepted: one prompt a line")
        return lines


class PromptTraffic(PromptList):
    """Remembers what came of each line, in words."""

    def __init__(self, lines: Sequence[Line], codec: TextCodec, max_new_tokens: int) -> None:
        super().__init__([WorkloadRequest(line.request_id, line.token_ids, max_new_tokens) for line in lines])
        self._lines = lines
        self._codec = codec
        self._outputs: dict[str, TokenIds] = {}

    def finished(self, request_id: str, output_token_ids: Sequence[int]) -> None:
        self._outputs[request_id] = list(output_token_ids)

    def answers(self) -> list[Answer]:
        return [
            Answer(line.number, line.text, self._codec.decode(output), len(line.token_ids), len(output))
            for line in self._lines
            for output in [self._outputs.get(line.request_id)]
            if output is not None
        ]
