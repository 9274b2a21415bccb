"""Python source to complete: module excerpts as shared prefixes, followed by the first line of a function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvhybrid.settings.values import MOST_TOKENS, at_least
from kvhybrid.text.corpus import held_out_text
from kvhybrid.workloads.text import TextWorkload

LONGEST_HEAD = 64
"""Characters of a function's first line, including its line break."""


@dataclass(kw_only=True)
class SourceCode(TextWorkload):
    """``num_prefixes`` excerpts of the standard library's held-out source, in whole lines and at most
    ``prefix_chars`` characters, each followed by ``requests_per_prefix`` different first lines of functions, in
    random order."""

    num_prefixes: int = 4
    requests_per_prefix: int = 8
    prefix_chars: int = 256
    max_new_tokens: int = 40

    num_shown: ClassVar[int | None] = 3

    @property
    def num_requests(self) -> int:
        return self.num_prefixes * self.requests_per_prefix

    def __post_init__(self) -> None:
        super().__post_init__()
        characters = self.num_requests * (self.prefix_chars + LONGEST_HEAD)
        at_least("workload: requests times workload.prefix_chars", characters, 1, MOST_TOKENS)

    def texts(self) -> list[tuple[int, str]]:
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
        return [(number, prompts[index]) for number, index in enumerate(random.permutation(len(prompts)), 1)]


def _is_head(line: str) -> bool:
    return line.lstrip().startswith("def ") and line.endswith(":\n") and len(line) <= LONGEST_HEAD


def _whole_lines(text: str, most: int) -> str:
    """The whole lines from the first line start in ``text`` on that fit in ``most`` characters."""
    begin = text.find("\n") + 1
    end = text.rfind("\n", begin, begin + most) + 1
    return text[begin : max(begin, end)] or text[begin : begin + most]
