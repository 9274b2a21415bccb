"""Retention: at which positions a request's prefix is worth resuming from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class RetainedRequest(Protocol):
    """What retention looks at in a request."""

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def shared_prefix_boundary(self) -> int:
        """The junction: how far another group proved the prefix shared, 0 where none did."""
        ...


@dataclass(frozen=True)
class Retention:
    """Which resumable positions keep their window tails and states.

    ``interval`` is None for all of them (dense), 0 for the latest only, N for every N tokens and the latest. The
    latest are where a resend of the prompt, or a longer one, would resume; junctions count as well.
    """

    interval: int | None
    scheduler_block_size: int
    draft: bool = False
    """Some group drops the last unit of its hits, so a resend resumes one common block lower."""

    @property
    def dense(self) -> bool:
        return self.interval is None

    def positions(self, request: RetainedRequest, start: int, end: int, alignment: int, margin: int) -> list[int]:
        """The positions to keep that may concern tokens in ``[start, end)``, each a multiple of ``alignment``.

        ``margin`` is what the asking group drops from a hit, 0 where it drops nothing.
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
