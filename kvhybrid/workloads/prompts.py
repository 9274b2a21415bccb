"""Text prompts from the lines of a file."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from kvhybrid.errors import InputError
from kvhybrid.files import UnreadableError, read_text
from kvhybrid.text.codec import TextCodec
from kvhybrid.workloads.text import TextWorkload


@dataclass(kw_only=True)
class Prompts(TextWorkload):
    """The lines of the UTF-8 text file ``path``, sent all at once. Blank lines are skipped."""

    path: str = "???"
    max_new_tokens: int = 64

    def prepare(self, codec: Callable[[], TextCodec]) -> None:
        super().prepare(codec)
        empty = [line.number for line in self.lines if not line.token_ids]
        if empty:
            raise InputError(f"workload.path: {self.path}: line {empty[0]}: the tokenizer returns no tokens")

    @property
    def num_requests(self) -> int:
        return len(self.lines)

    @property
    def longest_name(self) -> str:
        return (
            f"workload.path: {self.path}: line {self.longest.number} with "
            f"workload.max_new_tokens={self.max_new_tokens}"
        )

    def texts(self) -> list[tuple[int, str]]:
        """The lines that are not blank, numbered from 1."""
        try:
            text = read_text(self.path)
        except UnreadableError as error:
            raise InputError(
                f"workload.path: {self.path}: cannot be read: {error}; accepted: a text file in UTF-8"
            ) from error
        every_line = enumerate(re.split(r"\r\n|\r|\n", text), 1)
        lines = [(number, line) for number, line in every_line if line.strip()]
        if not lines:
            raise InputError(f"workload.path: {self.path}: no prompt in it; accepted: one prompt per line")
        return lines
