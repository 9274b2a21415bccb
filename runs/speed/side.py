"""The contract of a side: what the works need of a cache manager, and what they return.

Our cache manager and vLLM's have the same public calls, so that one loop drives both and a side only builds them.
Imports the standard library and this folder alone.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from runs.speed.trace import Prompt
from runs.speed.works import Group, Size


@dataclass
class Run:
    """What one run of a work took and decided."""

    seconds: dict[str, float]
    """Processor time by part of the work. The work on memory has bytes here."""
    units: dict[str, int]
    """By the same parts, how many blocks, look-ups or steps it is for."""
    decisions: list[Any] = field(default_factory=list)
    """What the manager answered, request by request: every side must answer the same."""
    evictions: list[int] | None = None
    """Per group; None if the side does not count them."""


Runs = dict[tuple[str, str], list[Run]]
"""By side and work, one run a round."""


def settle_heap() -> None:
    """Before the clock starts: collect the garbage of the last run, and keep all live objects out of later
    collections. Every side does this, so that none pays for the size of what it has imported."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def repeated(run: Callable[[], Run]) -> Iterator[Run]:
    """Endless runs. Each is a call, so that all its objects are freed before the next one is timed."""
    while True:
        yield run()


class Side(ABC):
    """A system under measurement, which opens works by name."""

    name: str

    @abstractmethod
    def version(self) -> str:
        """Its packages and their versions."""

    @abstractmethod
    def open(self, work: str, size: Size) -> Iterator[Run]:
        """The runs of a work, one after another; the caller stops when it has enough."""


class ManagerSide(Side):
    """A cache manager with the public calls of `kvhybrid.cache.manager.KVCacheManager`."""

    running: Any
    """The status of an admitted request."""

    @abstractmethod
    def cache(self, groups: Sequence[Group], num_blocks: int) -> Any:
        """An empty cache manager, with the pool's null block among ``num_blocks``."""

    @abstractmethod
    def request(self, request_id: str, num_tokens: int, keys: Sequence[bytes]) -> Any:
        """A request without tokens, whose full blocks have these keys. Its ``num_tokens`` can be set."""

    @abstractmethod
    def token_request(self, request_id: str, tokens: list[int]) -> Any:
        """A request with tokens and without keys."""

    @abstractmethod
    def hasher(self) -> Callable[[Any], Any]:
        """Gives a `token_request` its keys, with the side's own default SHA-256."""

    @abstractmethod
    def after_request(self, cache: Any) -> Callable[[], Any] | None:
        """A call to make after every request, or None."""

    @abstractmethod
    def look(self, cache: Any) -> list[int] | None:
        """Read all the side's statistics. Returns the evictions per group, or None if it does not count them."""

    @abstractmethod
    def scheduler(self, groups: Sequence[Group], num_blocks: int, budget: int, seqs: int) -> ScheduledCache:
        """The side's own scheduler over a cache of its own: ``budget`` tokens a step, ``seqs`` requests."""


class ScheduledCache(ABC):
    """A scheduler and its cache, driven step by step without a model."""

    @abstractmethod
    def add(self, prompt: Prompt) -> None:
        """Queue a request, which generates the number of tokens that the trace gives."""

    @abstractmethod
    def run(self) -> int:
        """Step until every request is done. Returns the number of steps."""

    @abstractmethod
    def hits(self) -> dict[str, int]:
        """Tokens hit by every request that was admitted since the last call."""
