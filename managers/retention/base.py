"""Retention: the positions from which a request's prefix stays resumable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mypy_extensions import mypyc_attr


class RetainedRequest(Protocol):
    """The attributes of a request that retention uses."""

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def shared_prefix_boundary(self) -> int:
        """The junction: the length, in tokens, up to which another group has shown the prefix to be shared; 0 for
        none."""
        ...


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
        step = alignment if self.interval is None else self.interval
        kept: list[int] = []
        if step:
            kept.extend(k * step for k in range(max(start // step, 1), end // step + 2))
        if self.interval is not None:
            kept.extend(p // alignment * alignment for p in self._latest(request.num_prompt_tokens))
            if request.shared_prefix_boundary:
                kept.append(request.shared_prefix_boundary // alignment * alignment)
                if margin:
                    kept.append((request.shared_prefix_boundary - margin) // alignment * alignment)
        return kept

    def _latest(self, num_prompt_tokens: int) -> tuple[int, ...]:
        if not self.draft:
            return (num_prompt_tokens - 1,)
        unit = self.scheduler_block_size
        resend, longer = ((num_prompt_tokens - 1) // unit, num_prompt_tokens // unit)
        return (max(resend - 1, 0) * unit, max(longer - 1, 0) * unit)
