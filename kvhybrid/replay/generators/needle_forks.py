"""Long contexts with forks: each request reads a context up to a random depth, then asks a question of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvhybrid.replay.generators.base import GeneratedTrace, Turn, answer
from kvhybrid.replay.prefix_numbers import Segment


@dataclass(frozen=True, kw_only=True)
class NeedleForks(GeneratedTrace):
    """``contexts`` contexts of ``context_tokens`` tokens with ``forks`` requests each. The first request of a
    context reads all of it; the others leave it at a uniformly drawn depth."""

    contexts: int = 16
    context_tokens: int = 32768
    forks: int = 16
    question_tokens: int = 64
    output_tokens: int = 64

    def turns(self, random: np.random.Generator) -> Iterator[Turn]:
        times = self.arrival_times(random, self.contexts * self.forks)
        order = np.repeat(np.arange(self.contexts), self.forks)
        random.shuffle(order)
        reads = [0] * self.contexts
        for index, (seconds, context) in enumerate(zip(times, order.tolist(), strict=True)):
            depth = int(random.integers(1, self.context_tokens + 1)) if reads[context] else self.context_tokens
            reads[context] += 1
            prompt = [Segment(("context", context), depth), Segment(("question", index), self.question_tokens)]
            yield Turn(f"context{context}-{index}", prompt, answer(index, self.output_tokens), seconds)
