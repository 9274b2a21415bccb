"""The interface of schedulers, which engine and replay call, and the schedule of a step.

Schedulers do not use tensors. They are driven in a loop: `BaseScheduler.schedule`, copies and forward pass, then
`BaseScheduler.update_from_output` with the sampled tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mypy_extensions import mypyc_attr

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request


@mypyc_attr(native_class=False)  # an exception cannot be one
class CapacityError(RuntimeError):
    """A request that does not fit in the pool even if it is the only one."""

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
    """The work of one step: first the copies, then all scheduled tokens in one batch."""

    scheduled: tuple[ScheduledRequest, ...]
    copies: tuple[tuple[int, int], ...]
    """(source, target) blocks to copy before the forward pass."""
    admitted: tuple[Request, ...]
    """Requests that got their first blocks in this step; an encoder runs for them before the forward pass."""
    preempted: tuple[Request, ...]
    """Requests that were preempted in this step: their blocks are freed and they wait to be recomputed."""
    num_scheduled_tokens: int


@mypyc_attr(allow_interpreted_subclasses=True)
class BaseScheduler(ABC):
    """Decides which requests compute which tokens in a step, and holds the unfinished requests.

    A subclass may have additional keyword parameters, which a config sets as ``scheduler.NAME``. To only change
    the order of requests, derive from `kvhybrid.scheduling.scheduler.Scheduler`.
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
        self.num_preemptions = 0

    @property
    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running)

    def add_request(self, request: Request) -> None:
        """Append ``request`` to `waiting`.

        Raises:
            ValueError: Its prompt leaves no room for a token within ``max_model_len``, or it requests no tokens.
        """
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

    @abstractmethod
    def schedule(self) -> SchedulerOutput:
        """Schedule one step. Blocks are allocated and get their keys; the requests' token counts do not change
        yet.

        Raises:
            CapacityError: A request does not fit in the whole pool; that request is dropped.
        """

    @abstractmethod
    def update_from_output(
        self, output: SchedulerOutput, sampled: Mapping[str, int], failed: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Complete a step that ran: count its tokens, append the sampled ones, free finished requests.

        ``sampled`` has the next token of every scheduled request with ``samples``, by request id, except requests
        in ``failed``, for which the step has no usable result: they end, and their prefixes are removed from the
        cache. Returns the ids of the requests that this step finished.
        """

    @abstractmethod
    def discard_output(self, output: SchedulerOutput) -> None:
        """Undo a step whose forward pass failed: blocks that it would have written lose their keys."""

    @abstractmethod
    def abort(self, request_id: str) -> None:
        """Drop a request between two steps and free its blocks; an unknown id is ignored."""
