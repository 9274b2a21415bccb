"""Long contexts, read one after the other in rounds: LRU keeps nothing once the contexts exceed the pool."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvhybrid.replay.generators.base import GeneratedTrace, Turn, answer
from kvhybrid.replay.prefix_numbers import Segment


@dataclass(frozen=True, kw_only=True)
class RoundRobin(GeneratedTrace):
    """``rounds`` rounds over ``contexts`` contexts of ``context_tokens`` tokens, with a new question each time."""

    contexts: int = 16
    context_tokens: int = 32768
    rounds: int = 8
    question_tokens: int = 64
    output_tokens: int = 64

    def turns(self, random: np.random.Generator) -> Iterator[Turn]:
        for index, seconds in enumerate(self.arrival_times(random, self.contexts * self.rounds)):
            turn, context = divmod(index, self.contexts)
            prompt = [Segment(("context", context), self.context_tokens)]
            question = Segment(("question", index), self.question_tokens)
            name = f"context{context}-round{turn}"
            yield Turn(name, [*prompt, question], answer(index, self.output_tokens), seconds)
