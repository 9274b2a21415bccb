"""The interface of traces: requests with sizes, times and prefix ids, but no tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvhybrid.errors import InputError
from kvhybrid.plugins import path_of
from kvhybrid.settings.values import MOST

PrefixIds: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TraceRequest:
    """One request of a trace."""

    request_id: str
    seconds: float
    """Arrival time, on the trace's clock."""
    num_prompt_tokens: int
    num_output_tokens: int
    """Tokens to generate, at least 1."""
    prefix_ids: PrefixIds
    """Entry i identifies the whole prefix up to the end of the prompt's i-th part. Parts have `Trace.part_tokens`
    tokens, except the last. Equal numbers mean equal prefixes, so a number is always at the same index."""
    session: str | None = None
    """The requests of a session follow each other; None: the request is a session of its own."""
    think_seconds: float = 0.0
    """Time between the end of the session's previous request and the arrival of this one, for a closed loop."""
    output_identified: bool = False
    """Whether ``prefix_ids`` covers prompt and output, so that a later prompt can hit the generated tokens."""

    @property
    def num_tokens(self) -> int:
        """Prompt and output together."""
        return self.num_prompt_tokens + self.num_output_tokens


@dataclass(frozen=True, eq=False)
class LoadedTrace:
    """The content of a trace."""

    requests: list[TraceRequest]
    skipped: int = 0
    """Malformed rows that were left out."""


class Trace(ABC):
    """A recorded or generated trace.

    Subclasses are dataclasses whose fields are the keys of ``conf/trace/<name>.yaml``.
    """

    @property
    @abstractmethod
    def part_tokens(self) -> int:
        """Tokens covered by one prefix id."""

    @property
    @abstractmethod
    def place(self) -> Path:
        """The file or folder that it is read from; its name if it is generated."""

    @abstractmethod
    def read(self) -> list[TraceRequest]:
        """All requests in the order of the trace. Raises `InputError` for an invalid file."""

    def load(self) -> LoadedTrace:
        """As `read`, with the number of rows that were left out."""
        return LoadedTrace(self.read())


def read_trace(trace: Trace) -> LoadedTrace:
    """The content of ``trace``, which may be a plug-in.

    Raises:
        InputError: The file is invalid, or `Trace.load` returns something else; the message names ``trace``.
    """
    loaded = trace.load()
    requests = loaded.requests
    name = f"trace {path_of(type(trace))}"
    if not isinstance(requests, list):
        raise InputError(f"{name}: read() must return a list of TraceRequests, found {requests!r:.60}")
    if not requests:
        raise InputError(f"{name}: {trace.place}: no requests")
    ids = set()
    for request in requests:
        if problem := _problem(request, trace.part_tokens):
            raise InputError(f"{name}: {problem}")
        if request.request_id in ids:
            raise InputError(f"{name}: two requests have the id {request.request_id!r}")
        ids.add(request.request_id)
    return loaded


def _problem(request: object, part_tokens: int) -> str | None:
    """What is wrong with a request of a trace."""
    if not isinstance(request, TraceRequest):
        return f"read() must return a list of TraceRequests, found {request!r:.60} in it"
    for key in ("num_prompt_tokens", "num_output_tokens"):
        found = getattr(request, key)
        if not isinstance(found, int) or not 1 <= found <= MOST:
            return f"{request.request_id!r}: {key} must be a whole number in [1, {MOST:,}], found {found!r:.60}"
    if not isinstance(request.seconds, (int, float)) or not isfinite(request.seconds):
        return f"{request.request_id!r}: seconds must be a finite number, found {request.seconds!r:.60}"
    identified = request.num_tokens if request.output_identified else request.num_prompt_tokens
    parts = -(-identified // part_tokens)
    if len(request.prefix_ids) != parts:
        return f"{request.request_id!r}: prefix_ids must have {parts} numbers, found {len(request.prefix_ids)}"
    return None
