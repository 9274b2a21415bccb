"""Documents of Zipf popularity: a few are asked about often, most of them rarely."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvhybrid.replay.generators.base import GeneratedTrace, Turn, answer
from kvhybrid.replay.prefix_numbers import Segment


@dataclass(frozen=True, kw_only=True)
class Zipf(GeneratedTrace):
    """``requests`` questions about ``documents`` documents; the k-th most popular one is drawn with a probability
    proportional to 1 / k ** ``exponent``."""

    requests: int = 2048
    documents: int = 256
    exponent: float = 1.0
    document_tokens: int = 4096
    question_tokens: int = 64
    output_tokens: int = 64

    def turns(self, random: np.random.Generator) -> Iterator[Turn]:
        weights = np.arange(1, self.documents + 1, dtype=float) ** -self.exponent
        drawn = random.choice(self.documents, self.requests, p=weights / weights.sum()).tolist()
        for index, (seconds, document) in enumerate(
            zip(self.arrival_times(random, self.requests), drawn, strict=True)
        ):
            prompt = [Segment(("document", document), self.document_tokens)]
            question = Segment(("question", index), self.question_tokens)
            yield Turn(f"request{index}", [*prompt, question], answer(index, self.output_tokens), seconds)
