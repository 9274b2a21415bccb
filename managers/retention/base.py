"""Retention: the positions from which a request's prefix stays resumable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from mypy_extensions import mypyc_attr

from kvhybrid.managers.arrays import EMPTY, IntArray


class RetainedRequest(Protocol):
    """The attributes of a request that retention uses."""

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def shared_prefix_boundary(self) -> int:
        """The junction: the length, in tokens, up to which another group has shown the prefix to be shared; 0 for
        none."""
        ...

    @property
    def resumed_at(self) -> int:
        """Tokens of the hit that it was admitted with."""
        ...


def multiples(step: int, start: int, end: int) -> list[int]:
    """The positive multiples of ``step`` that may read tokens in ``[start, end)``; none if ``step`` is 0."""
    return [k * step for k in range(max(start // step, 1), end // step + 2)] if step else []


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(frozen=True)
class Retention:
    """Selects the resumable positions whose window tails and states are kept."""

    interval: int | None
    """In tokens. None: all positions are kept (dense). 0: only the latest. N: every N tokens, and the latest.

    The latest positions are junctions, and those from which a resend of the prompt or a longer prompt would
    resume.
    """
    scheduler_block_size: int
    """Tokens: the least common multiple of the groups' block sizes."""
    draft: bool = False
    """Whether some group drops the last unit of its hits, so that a resend resumes one common block earlier."""

    @property
    def by_interval(self) -> bool:
        """Whether ``interval`` alone decides, because this policy has no `positions` of its own."""
        return type(self).positions is Retention.positions

    @property
    def thins(self) -> bool:
        """Whether states that were kept may become `surplus`."""
        return type(self).surplus is not Retention.surplus

    @property
    def dense(self) -> bool:
        """Whether all positions are kept."""
        return self.interval is None and self.by_interval

    def positions(self, request: RetainedRequest, start: int, end: int, alignment: int, margin: int) -> list[int]:
        """The positions to keep, in tokens, that may read tokens in ``[start, end)``, in no particular order.

        Args:
            request: The request whose prefix is kept.
            alignment: Hits, and so the positions, are multiples of this many tokens.
            margin: Tokens of the group's hits that a draft model recomputes, or 0.
        """
        kept = multiples(alignment if self.interval is None else self.interval, start, end)
        return kept if self.interval is None else kept + self.latest(request, alignment, margin)

    def latest(self, request: RetainedRequest, alignment: int, margin: int) -> list[int]:
        """Where a resend of the prompt, a longer one, and one that shares its prefix up to the junction resume."""
        kept = [p // alignment * alignment for p in self._latest(request.num_prompt_tokens)]
        if request.shared_prefix_boundary:
            kept.append(request.shared_prefix_boundary // alignment * alignment)
            if margin:
                kept.append((request.shared_prefix_boundary - margin) // alignment * alignment)
        return kept

    def stops(self, request: RetainedRequest, block: int) -> Sequence[int]:
        """Positions at which a step of the prompt has to end, in tokens: multiples of ``block``.

        A state exists only where a step ended. Steps end at the junction and at the prompt's last boundary in any
        case; each further stop costs a step.
        """
        return ()

    def known_forks(self, request: RetainedRequest, kept: IntArray) -> IntArray:
        """Those of ``kept`` at which prompts are known to part: the junction, and where the request resumed."""
        junction = kept[kept <= request.shared_prefix_boundary][-1:]
        return np.union1d(junction, kept[kept == request.resumed_at])

    def surplus(self, request: RetainedRequest, kept: IntArray) -> IntArray:
        """Those of ``kept`` that are no longer worth their state.

        It is called after a step has kept a state.

        Args:
            request: The request that kept it.
            kept: The positions on the request's prefix from which states can be resumed, in tokens, ascending;
                other requests may have kept them.
        """
        return EMPTY

    def _latest(self, num_prompt_tokens: int) -> tuple[int, ...]:
        if not self.draft:
            return (num_prompt_tokens - 1,)
        unit = self.scheduler_block_size
        resend, longer = ((num_prompt_tokens - 1) // unit, num_prompt_tokens // unit)
        return (max(resend - 1, 0) * unit, max(longer - 1, 0) * unit)
