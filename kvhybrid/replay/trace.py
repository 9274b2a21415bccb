"""The interface of traces: requests with sizes, times and prefix ids, but no tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

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
