"""Python source to go on with: pieces of modules as shared prefixes, the head of a function at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvhybrid.corpus import held_out_text
from kvhybrid.text import TextCodec
from kvhybrid.workloads.base import Traffic, Workload
from kvhybrid.workloads.prompts import Line, PromptTraffic

LONGEST_HEAD = 64
"""Characters of a function's head, its line break included."""


@dataclass(kw_only=True)
class SourceCode(Workload):
    """``num_prefixes`` pieces of the standard library's held-out source, of whole lines and at most
    ``prefix_chars`` characters, each with ``requests_per_prefix`` different heads of functions behind it, in
    random order."""

    num_prefixes: int = 4
    requests_per_prefix: int = 8
    prefix_chars: int = 256
    max_new_tokens: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        self._lines: list[Line] = []
        self._codec: TextCodec | None = None

    def prepare(self, codec: Callable[[], TextCodec]) -> None:
        self._codec = codec()
        self._lines = [
            Line(number, text, self._codec.encode(text)) for number, text in enumerate(self._texts(), 1)
        ]

    @property
    def num_requests(self) -> int:
        return self.num_prefixes * self.requests_per_prefix

    @property
    def longest_request(self) -> int:
        return max(len(line.token_ids) for line in self._lines) + self.max_new_tokens

    @property
    def eos_token_id(self) -> int | None:
        return self._codec.eos_token_id if self._codec else None

    def traffic(self, vocab_size: int) -> Traffic:
        """Raises ValueError before `prepare`, and where the tokenizer knows tokens that the model does not."""
        if self._codec is None:
            raise ValueError("source code is token ids only after `prepare`")
        highest = max(token for line in self._lines for token in line.token_ids)
        if highest >= vocab_size:
            raise ValueError(f"the tokenizer gives token id {highest}, but the model's end at {vocab_size - 1}")
        return SourceTraffic(self._lines, self._codec, self.max_new_tokens)

    def _texts(self) -> list[str]:
        random = np.random.default_rng(self.seed)
        text = held_out_text().decode("utf-8")
        heads = sorted(line for line in set(text.splitlines(keepends=True)) if _is_head(line))
        limits = {"prefix_chars": len(text) // 4, "requests_per_prefix": len(heads)}
        for name, most in limits.items():
            if getattr(self, name) > most:
                raise ValueError(f"workload.{name} must be at most {most}, found {getattr(self, name)}")
        prompts = []
        for begin in random.integers(len(text) - 2 * self.prefix_chars, size=self.num_prefixes).tolist():
            prefix = _whole_lines(text[begin : begin + 2 * self.prefix_chars], self.prefix_chars)
            chosen = random.choice(len(heads), size=self.requests_per_prefix, replace=False)
            prompts += [f"{prefix}\n{heads[index]}" for index in chosen]
        return [prompts[index] for index in random.permutation(len(prompts))]


class SourceTraffic(PromptTraffic):
    num_shown = 3


def _is_head(line: str) -> bool:
    return line.lstrip().startswith("def ") and line.endswith(":\n") and len(line) <= LONGEST_HEAD


def _whole_lines(text: str, most: int) -> str:
    """From the first line that begins in ``text``: as many whole ones as ``most`` characters hold."""
    begin = text.find("\n") + 1
    end = text.rfind("\n", begin, begin + most) + 1
    return text[begin : max(begin, end)] or text[begin : begin + most]
