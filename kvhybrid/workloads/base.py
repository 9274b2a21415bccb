"""The contract of this folder: a workload is a recipe of sizes, its traffic the requests drawn from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from kvhybrid.settings.values import MOST, MOST_SEED, at_least
from kvhybrid.text.codec import TextCodec

TokenIds = list[int]


@dataclass(frozen=True)
class WorkloadRequest:
    """One prompt that may be sent now."""

    request_id: str
    prompt_token_ids: TokenIds
    max_new_tokens: int


@dataclass(frozen=True)
class Answer:
    """A prompt in words, and the text that the model went on with."""

    line: int
    """Where the prompt stands in its file, from 1."""
    prompt: str
    text: str
    prompt_tokens: int
    output_tokens: int


class Traffic(ABC):
    """The requests of one run, in the order in which they may be sent.

    The runner asks `ready` at the start and after every step, and tells every request that ended.
    """

    num_shown: int | None = None
    """Answers that the terminal shows; None for all."""

    @abstractmethod
    def ready(self) -> list[WorkloadRequest]:
        """Requests that may be sent now and have not been handed out before."""

    @abstractmethod
    def finished(self, request_id: str, output_token_ids: Sequence[int]) -> None:
        """Learn that a request has ended, and with which tokens."""

    def answers(self) -> Sequence[Answer]:
        """The requests that have ended, in words; none where the traffic is token ids."""
        return ()


class PromptList(Traffic):
    """Traffic that is known from the start and may be sent all at once."""

    def __init__(self, requests: Sequence[WorkloadRequest]) -> None:
        self._unsent = list(requests)

    def ready(self) -> list[WorkloadRequest]:
        sent, self._unsent = self._unsent, []
        return sent

    def finished(self, request_id: str, output_token_ids: Sequence[int]) -> None:
        pass


@dataclass(kw_only=True)
class Workload(ABC):
    """Sizes in requests and tokens, and the seed. The same workload always draws the same token ids.

    Subclasses are dataclasses whose fields are the keys of ``conf/workload/<name>.yaml``.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "seed":
                at_least("workload.seed", value, 0, MOST_SEED)
            elif type(value) in (int, float):
                at_least(f"workload.{field.name}", value, 1 if type(value) is int else -MOST)

    def prepare(self, codec: Callable[[], TextCodec]) -> None:
        """Called once, before anything else is asked: a workload in words turns them into token ids here.

        ``codec`` gives the model's text codec and raises ValueError where it has none.
        """
        return

    @property
    @abstractmethod
    def num_requests(self) -> int:
        """Requests of the whole run."""

    @property
    @abstractmethod
    def longest_request(self) -> int:
        """Tokens of the longest request: its prompt and all that it may generate."""

    @property
    def longest_name(self) -> str:
        """What an error calls the longest request."""
        return "the workload's longest request"

    @property
    def end_token_ids(self) -> frozenset[int]:
        """The tokens that end a request early; without any, each runs to its ``max_new_tokens``."""
        return frozenset()

    @abstractmethod
    def traffic(self, vocab_size: int) -> Traffic:
        """A fresh start of the workload, with token ids in ``[0, vocab_size)``."""


class TokenSource:
    """Seeded random token ids."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        self.random = np.random.default_rng(seed)
        self._vocab_size = vocab_size

    def draw(self, num_tokens: int) -> TokenIds:
        drawn: TokenIds = self.random.integers(self._vocab_size, size=num_tokens).tolist()
        return drawn
