"""The contract of a scheduler: what an engine or a replay calls, and what a step's plan says.

A scheduler knows no tensors. It is driven in a loop: `BaseScheduler.schedule`, copies and forward pass, then
`BaseScheduler.update_from_output` with what was sampled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mypy_extensions import mypyc_attr

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus


@mypyc_attr(native_class=False)  # an exception cannot be one
class CapacityError(RuntimeError):
    """A request that the whole pool, with nobody else in it, cannot hold."""

    def __init__(self, request_id: str, message: str) -> None:
        super().__init__(message)
        self.request_id = request_id


class ScheduledRequest(NamedTuple):
    """The tokens ``[start, start + num_tokens)`` of one request, to be computed in this step."""

    request: Request
    start: int
    num_tokens: int
    samples: bool
    """Whether the step reaches the request's last token, so that the next one is sampled."""


@dataclass(frozen=True)
class SchedulerOutput:
    """One step's work, in the order of execution: the copies, then all scheduled tokens in one batch."""

    scheduled: tuple[ScheduledRequest, ...]
    copies: tuple[tuple[int, int], ...]
    """(source, target) blocks to copy before the forward pass."""
    admitted: tuple[Request, ...]
    """Requests that got their first blocks in this step; an encoder runs for them before the forward pass."""
    preempted: tuple[Request, ...]
    """Requests that gave their blocks back in this step and wait to be computed anew."""
    num_scheduled_tokens: int


@mypyc_attr(allow_interpreted_subclasses=True)
class BaseScheduler(ABC):
    """Decides which requests compute which tokens in a step, and holds the requests that are not finished.

    A subclass may have further keyword parameters, which a config sets as ``scheduler.NAME``. One that only orders
    requests differently best derives from `kvhybrid.scheduling.scheduler.Scheduler`.
    """

    def __init__(
        self,
        cache: KVCacheManager,
        *,
        max_batched_tokens: int = 512,
        max_num_seqs: int = 16,
        end_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        """A step computes at most ``max_batched_tokens`` tokens of ``max_num_seqs`` requests. A request ends when
        one of ``end_token_ids`` is sampled.

        Raises:
            ValueError: A limit is below 1.
        """
        for name, value in (("max_batched_tokens", max_batched_tokens), ("max_num_seqs", max_num_seqs)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, found {value}")
        self.cache = cache
        self.max_batched_tokens = max_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.end_token_ids = end_token_ids
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.unfinished: dict[str, Request] = {}
        """The requests of both, by id. A subclass takes out those that end."""
        self.num_preemptions = 0

    @property
    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running)

    def add_request(self, request: Request) -> None:
        """Put ``request`` at the end of `waiting`.

        Raises:
            ValueError: It leaves no room for a token below ``max_model_len``, asks for none, or has the id of an
                unfinished request.
        """
        known = self.unfinished.get(request.request_id)
        if known is not None and known.status is not RequestStatus.FINISHED:
            raise ValueError(f"request id {request.request_id!r} is taken by an unfinished request")
        limit = self.cache.max_model_len
        if request.num_tokens >= limit:
            raise ValueError(
                f"request {request.request_id!r}: a prompt of {request.num_tokens} tokens leaves no room for "
                f"a new token; max_model_len is {limit} tokens, prompt and output together"
            )
        if request.max_new_tokens < 1:
            raise ValueError(
                f"request {request.request_id!r}: max_new_tokens must be at least 1, "
                f"found {request.max_new_tokens}"
            )
        self.waiting.append(request)
        self.unfinished[request.request_id] = request

    @abstractmethod
    def schedule(self) -> SchedulerOutput:
        """Schedule one step. Its requests' blocks are allocated and keyed; their token counts are as before.

        Raises:
            CapacityError: The whole pool cannot hold a request; that request is dropped. After this and any other
                error, all other requests wait to be computed again.
        """

    @abstractmethod
    def update_from_output(
        self, output: SchedulerOutput, sampled: Mapping[str, int], failed: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Settle a step that ran: count its tokens, append the sampled ones, free what is finished.

        ``sampled`` has the next token of every scheduled request with ``samples``, by request id. The requests of
        ``failed`` have none, since the step gave no usable result for them: they end, and no later request finds
        their prefixes in the cache. Returns the ids of the requests that this step finished.
        """

    @abstractmethod
    def discard_output(self, output: SchedulerOutput) -> None:
        """Undo a step whose forward pass failed: all its requests wait to be computed again, and no block that it
        would have written keeps a key."""

    @abstractmethod
    def abort(self, request_id: str) -> None:
        """Drop a request between two steps and free its blocks; an unknown id is ignored."""
