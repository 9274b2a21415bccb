"""A trace as references to units of its prompts: which unit is written when, and when it can be hit next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kvhybrid.replay.prefix_keys import PrefixKeys
from kvhybrid.replay.trace import TraceRequest

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class References:
    """The units of all requests, in the order of the requests, and root first in each."""

    numbers: Ints
    """Of each reference, the number of its unit. Equal numbers mean equal prefixes."""
    starts: Ints
    """The reference at which each request starts; one more entry than requests."""
    usable: Ints
    """Of each request, how many of its first units can be hit."""
    tokens: Ints
    """Tokens of each request's prompt."""
    unit: int
    """Tokens per unit."""

    @classmethod
    def of_requests(cls, requests: Sequence[TraceRequest], unit: int, part_tokens: int) -> References:
        """Full units only. A hit leaves at least one token of the prompt to compute. The last token that is
        generated is never computed, so it is in no unit."""
        keys = PrefixKeys(unit, part_tokens)
        numbers = [
            keys.numbers(r.prefix_ids, r.num_tokens - 1 if r.output_identified else r.num_prompt_tokens)
            for r in requests
        ]
        tokens = np.array([r.num_prompt_tokens for r in requests], np.int64)
        return cls._of_lists(numbers, (tokens - 1) // unit, tokens, unit)

    @classmethod
    def of_trace_rule(cls, requests: Sequence[TraceRequest], part_tokens: int) -> References:
        """Every id is a unit, also that of a last partial part, and all of them can be hit."""
        numbers = [r.prefix_ids[: -(-r.num_prompt_tokens // part_tokens)] for r in requests]
        tokens = np.array([r.num_prompt_tokens for r in requests], np.int64)
        return cls._of_lists(numbers, np.array([len(ids) for ids in numbers], np.int64), tokens, part_tokens)

    @classmethod
    def _of_lists(cls, numbers: Sequence[Ints], usable: Ints, tokens: Ints, unit: int) -> References:
        starts = np.zeros(len(numbers) + 1, np.int64)
        np.cumsum([len(found) for found in numbers], out=starts[1:])
        return cls(np.concatenate(numbers) if numbers else np.zeros(0, np.int64), starts, usable, tokens, unit)

    @property
    def num_requests(self) -> int:
        return len(self.tokens)

    @cached_property
    def request_of(self) -> Ints:
        """The request of each reference."""
        return np.repeat(np.arange(self.num_requests), np.diff(self.starts))

    @cached_property
    def next_hit(self) -> Ints:
        """Of each reference, the request that refers to its unit next and could hit it; -1 if there is none."""
        order = np.argsort(self.numbers, kind="stable")
        same = self.numbers[order[1:]] == self.numbers[order[:-1]]
        following = order[1:][same]
        request = self.request_of[following]
        index = following - self.starts[request]
        found = np.full(len(self.numbers), -1, np.int64)
        found[order[:-1][same]] = np.where(index < self.usable[request], request, -1)
        return found

    @cached_property
    def runs(self) -> list[list[tuple[int, int]]]:
        """Per request, its units by their next hit: ``(request, units)`` for every request that can hit some."""
        hit = self.next_hit
        reused = hit >= 0
        pairs, counts = np.unique(self.request_of[reused] * self.num_requests + hit[reused], return_counts=True)
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.num_requests)]
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            request, following = divmod(pair, self.num_requests)
            found[request].append((following, count))
        return found

    def hit_tokens(self, units: Ints) -> int:
        """Tokens hit if each request hits its first ``units`` units; the last one may be partial."""
        return int(np.minimum(units * self.unit, self.tokens).sum())
