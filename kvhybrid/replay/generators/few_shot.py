"""Few-shot prompts: examples drawn from a common pool, in the pool's order, then a question."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvhybrid.replay.generators.base import GeneratedTrace, Turn, answer
from kvhybrid.replay.prefix_numbers import Segment


@dataclass(frozen=True, kw_only=True)
class FewShot(GeneratedTrace):
    """``shots`` of ``pool_examples`` examples per prompt; questions differ."""

    requests: int = 512
    pool_examples: int = 8
    example_tokens: int = 256
    shots: int = 4
    question_tokens: int = 64
    output_tokens: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shots > self.pool_examples:
            raise ValueError(
                f"trace.shots must be at most {self.pool_examples}, pool_examples, found {self.shots}"
            )

    def turns(self, random: np.random.Generator) -> Iterator[Turn]:
        for index, seconds in enumerate(self.arrival_times(random, self.requests)):
            chosen = sorted(random.choice(self.pool_examples, self.shots, replace=False).tolist())
            prompt = [Segment(("example", example), self.example_tokens) for example in chosen]
            question = Segment(("question", index), self.question_tokens)
            yield Turn(f"request{index}", [*prompt, question], answer(index, self.output_tokens), seconds)
