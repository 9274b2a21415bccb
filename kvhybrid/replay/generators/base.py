"""The base class of generated traces: prompts as segments, arrival times, and a seed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from kvhybrid.replay.prefix_numbers import PrefixNumbers, Segment
from kvhybrid.replay.trace import Trace, TraceRequest
from kvhybrid.settings.values import MOST, MOST_SEED, at_least


@dataclass(frozen=True)
class Turn:
    """One request: the segments of its prompt and the tokens that it generates."""

    name: str
    prompt: Sequence[Segment]
    output: Segment
    seconds: float
    """Arrival time."""
    session: str | None = None
    think_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class GeneratedTrace(Trace):
    """Sizes in requests and tokens, and a seed. Equal settings give equal requests.

    Requests, or sessions of several requests, arrive at random, ``rate`` per second on average. Prefixes are
    identified in parts of ``part_tokens`` tokens: use block sizes that are multiples of it.

    Subclasses are dataclasses whose fields are the keys of ``conf/trace/<name>.yaml``.
    """

    seed: int = 0
    rate: float = 1.0
    part_tokens: int = 16

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "seed":
                at_least("trace.seed", value, 0, MOST_SEED)
            elif type(value) in (int, float):
                at_least(f"trace.{field.name}", value, 1 if type(value) is int else 0, MOST)
        if not self.rate:
            raise ValueError("trace.rate must be more than 0 requests per second")

    @property
    def place(self) -> Path:
        return Path(type(self).__name__)

    @abstractmethod
    def turns(self, random: np.random.Generator) -> Iterator[Turn]:
        """All requests, in any order."""

    def read(self) -> list[TraceRequest]:
        numbers = PrefixNumbers()
        turns = sorted(self.turns(np.random.default_rng(self.seed)), key=lambda turn: turn.seconds)
        return [self._request(turn, numbers) for turn in turns]

    def _request(self, turn: Turn, numbers: PrefixNumbers) -> TraceRequest:
        return TraceRequest(
            request_id=turn.name,
            seconds=turn.seconds,
            num_prompt_tokens=sum(segment.num_tokens for segment in turn.prompt),
            num_output_tokens=turn.output.num_tokens,
            prefix_ids=numbers.of_segments([*turn.prompt, turn.output], self.part_tokens),
            session=turn.session,
            think_seconds=turn.think_seconds,
            output_identified=True,
        )

    def arrival_times(self, random: np.random.Generator, count: int) -> list[float]:
        """``count`` times of a Poisson process."""
        times: list[float] = random.exponential(1 / self.rate, count).cumsum().tolist()
        return times


def answer(name: Hashable, num_tokens: int) -> Segment:
    """The tokens that the request ``name`` generates."""
    return Segment(("answer", name), num_tokens)
