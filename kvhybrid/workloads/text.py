"""Base classes of text workloads: prompts are tokenized once, and completions are kept as text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvhybrid.errors import InputError
from kvhybrid.text.codec import TextCodec
from kvhybrid.workloads.base import Answer, PromptList, TokenIds, Traffic, Workload, WorkloadRequest


@dataclass(frozen=True)
class Line:
    """A prompt and its line number."""

    number: int
    text: str
    token_ids: TokenIds

    @property
    def request_id(self) -> str:
        """Unique within the workload."""
        return f"line{self.number}"


class TextWorkload(Workload):
    """A workload whose prompts are text. A subclass defines `texts`; `prepare` tokenizes them with the model's
    codec.
    """

    max_new_tokens: int
    """A field of every subclass, which declares it so that it can choose the order of its keys."""
    num_shown: ClassVar[int | None] = None
    """Maximum number of answers that a run prints; None: all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lines: list[Line] = []
        self._codec: TextCodec | None = None

    @abstractmethod
    def texts(self) -> list[tuple[int, str]]:
        """The prompts with their numbers. Raises ValueError if they cannot be read."""

    def prepare(self, codec: Callable[[], TextCodec]) -> None:
        texts = self.texts()
        self._codec = codec()
        self.lines = [Line(number, text, self._codec.encode(text)) for number, text in texts]

    @property
    def longest(self) -> Line:
        """The prompt with the most tokens."""
        return max(self.lines, key=lambda line: len(line.token_ids))

    @property
    def longest_request(self) -> int:
        return len(self.longest.token_ids) + self.max_new_tokens

    @property
    def end_token_ids(self) -> frozenset[int]:
        return self._codec.end_token_ids if self._codec else frozenset()

    def traffic(self, vocab_size: int) -> Traffic:
        """Raises InputError before `prepare`, and if the tokenizer has tokens that the model does not."""
        if self._codec is None:
            raise InputError("call `prepare` first: it tokenizes the prompts")
        highest = max(token for line in self.lines for token in line.token_ids)
        if highest >= vocab_size:
            raise InputError(f"the tokenizer gives token id {highest}, but the model's end at {vocab_size - 1}")
        return TextTraffic(self.lines, self._codec, self.max_new_tokens, self.num_shown)


class TextTraffic(PromptList):
    """Collects the completion of each prompt."""

    def __init__(
        self, lines: Sequence[Line], codec: TextCodec, max_new_tokens: int, num_shown: int | None
    ) -> None:
        super().__init__([WorkloadRequest(line.request_id, line.token_ids, max_new_tokens) for line in lines])
        self.num_shown = num_shown
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
