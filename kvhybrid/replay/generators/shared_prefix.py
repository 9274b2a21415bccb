"""Groups of requests that start with the same long text, such as a system prompt or a document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvhybrid.replay.generators.base import GeneratedTrace, Turn, answer
from kvhybrid.replay.prefix_numbers import Segment


@dataclass(frozen=True, kw_only=True)
class SharedPrefix(GeneratedTrace):
    """``num_prefixes`` prefixes, each with ``requests_per_prefix`` different endings, in random order."""

    num_prefixes: int = 8
    requests_per_prefix: int = 64
    prefix_tokens: int = 4096
    suffix_tokens: int = 256
    output_tokens: int = 128

    def turns(self, random: np.random.Generator) -> Iterator[Turn]:
        count = self.num_prefixes * self.requests_per_prefix
        times = self.arrival_times(random, count)
        for seconds, place in zip(times, random.permutation(count).tolist(), strict=True):
            prefix, member = divmod(place, self.requests_per_prefix)
            name = f"prefix{prefix}-{member}"
            prompt = [
                Segment(("prefix", prefix), self.prefix_tokens),
                Segment(("suffix", name), self.suffix_tokens),
            ]
            yield Turn(name, prompt, answer(name, self.output_tokens), seconds)
