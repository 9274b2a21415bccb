"""Junctions and ends: what prompts share, and what was computed last."""

from __future__ import annotations

from dataclasses import dataclass

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.retention.base import RetainedRequest, Retention, multiples


@dataclass(frozen=True)
class Junction(Retention):
    """The admission of Marconi (MLSys 2025): a state where prompts part, and one at the end of each sequence.

    The end moves with the output, and the state of the end before it is given up. A resend of a prompt therefore
    resumes at a junction, once another prompt has shown one. With ``interval``, every N tokens are kept as well.
    """

    def positions(self, request: RetainedRequest, start: int, end: int, alignment: int, margin: int) -> list[int]:
        output = max(start, request.num_prompt_tokens)
        return [
            *multiples(self.interval or 0, start, end),
            *self.latest(request, alignment, margin),
            *(multiples(alignment, output, end) if output < end else ()),
        ]

    def surplus(self, request: RetainedRequest, kept: IntArray) -> IntArray:
        ends = kept[kept > request.shared_prefix_boundary]
        passed = ends[(ends[-1:] > request.num_prompt_tokens) & (ends >= self._end_of_prompt(request, ends))][:-1]
        return passed[passed % self.interval != 0] if self.interval else passed

    def _end_of_prompt(self, request: RetainedRequest, ends: IntArray) -> int:
        """The last of ``ends`` in the prompt."""
        inside = ends[ends < request.num_prompt_tokens]
        return int(inside[-1]) if len(inside) else 0
