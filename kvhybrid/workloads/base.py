"""The interface of workloads, which describe requests by sizes and a seed, and of the traffic drawn from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from kvhybrid.errors import InputError
from kvhybrid.plugins import path_of
from kvhybrid.settings.values import MOST, MOST_SEED, at_least
from kvhybrid.text.codec import TextCodec

TokenIds = list[int]


@dataclass(frozen=True)
class WorkloadRequest:
    """One prompt to send."""

    request_id: str
    prompt_token_ids: TokenIds
    max_new_tokens: int


@dataclass(frozen=True)
class Answer:
    """A text prompt and its completion."""

    line: int
    """Line number of the prompt in its file, from 1."""
    prompt: str
    text: str
    prompt_tokens: int
    output_tokens: int


class Traffic(ABC):
    """The requests of one run, in the order in which they are sent.

    The runner calls `ready` at the start and after every step, and `finished` for every request that ended.
    """

    num_shown: int | None = None
    """Maximum number of answers printed to the terminal; None: all."""

    @abstractmethod
    def ready(self) -> list[WorkloadRequest]:
        """New requests that can be sent now."""

    @abstractmethod
    def finished(self, request_id: str, output_token_ids: Sequence[int]) -> None:
        """Called when a request has ended, with its generated tokens."""

    def answers(self) -> Sequence[Answer]:
        """The requests that have ended, as text; empty if the prompts are token ids."""
        return ()


class PromptList(Traffic):
    """Traffic that is known from the start and is sent all at once."""

    def __init__(self, requests: Sequence[WorkloadRequest]) -> None:
        self._unsent = list(requests)

    def ready(self) -> list[WorkloadRequest]:
        sent, self._unsent = self._unsent, []
        return sent

    def finished(self, request_id: str, output_token_ids: Sequence[int]) -> None:
        pass


@dataclass(kw_only=True)
class Workload(ABC):
    """Sizes in requests and tokens, and a seed. Equal workloads draw equal token ids.

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
        """Called once before all other methods; a text workload tokenizes its prompts here.

        ``codec`` returns the model's text codec, and raises ValueError if it has none.
        """
        return

    @property
    @abstractmethod
    def num_requests(self) -> int:
        """Number of requests of the whole run."""

    @property
    @abstractmethod
    def longest_request(self) -> int:
        """Maximum tokens of a request, prompt and output together."""

    @property
    def longest_name(self) -> str:
        """Description of the longest request for error messages."""
        return "the workload's longest request"

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Tokens that end a request early; if empty, each request runs to its ``max_new_tokens``."""
        return frozenset()

    @abstractmethod
    def traffic(self, vocab_size: int) -> Traffic:
        """Draw the requests, with token ids in ``[0, vocab_size)``."""


def check_sizes(workload: Workload) -> None:
    """Raise `InputError` if ``workload``, which may be a plug-in, does not state its sizes as whole numbers."""
    for key, found in (("num_requests", workload.num_requests), ("longest_request", workload.longest_request)):
        if not isinstance(found, int) or found < 1:
            raise InputError(
                f"workload {path_of(type(workload))}: {key} must be a whole number of at least 1, "
                f"found {found!r:.60}"
            )


class TokenSource:
    """Seeded random token ids."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        self.random = np.random.default_rng(seed)
        self._vocab_size = vocab_size

    def draw(self, num_tokens: int) -> TokenIds:
        drawn: TokenIds = self.random.integers(self._vocab_size, size=num_tokens).tolist()
        return drawn
