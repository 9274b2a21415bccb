"""Prefill chunking: ends steps where other requests can resume from a recurrent state."""

from __future__ import annotations

from math import lcm

from kvhybrid.cache.coordinators import KVCacheCoordinator
from kvhybrid.cache.request import Request


class PrefillChunking:
    """Shortens the steps of a prefill if a group keeps states.

    Attention can resume anywhere, since its blocks hold every token. A state exists only at the end of a step, so
    a later request can resume from a position only if a step ended there. This costs shorter chunks but no
    additional tokens. Decode steps and caches without cacheable states are never affected.
    """

    def __init__(self, coordinator: KVCacheCoordinator) -> None:
        config = coordinator.config
        states = [config.block_size_of(g.spec) for g in config.groups if g.spec.state and g.spec.cacheable]
        self._active = bool(states)
        self._draft = any(group.draft for group in config.groups)
        self._unit = coordinator.alignment
        self._retention = coordinator.retention
        # A state on a block boundary that no hit can end on would never be reused.
        self._block = lcm(self._unit, *states)

    def clip(self, request: Request, start: int, num_tokens: int) -> int:
        """How many of the ``num_tokens`` tokens from position ``start`` this step computes, at least 1.

        The step ends at the first of these positions that it contains:

        - the next block boundary, if it starts inside a block (after a hit that ended there, or a short step);
        - the last position from which a request with the same tokens can resume;
        - the same for the prompt at the granularity of hits, if hits can end inside a block;
        - the last block boundary before the junction, up to which another group has shown the prefix to be shared;
        - a position at which the retention policy wants steps to end.

        If the budget ends a step before the end of the prefill, it ends on a block boundary if it reaches one. A
        step is never postponed: a state inside a block is correct, it just gets no key.
        """
        prefill_end = request.num_tokens - 1 if request.num_output_tokens else request.num_prompt_tokens
        if not self._active or start >= prefill_end:
            return num_tokens
        block = self._block
        end = start + num_tokens
        if end < prefill_end and end // block * block > start:
            end = end // block * block
        last_boundary = resume_position(request.num_tokens, block, self._draft)
        tail = resume_position(request.num_prompt_tokens, self._unit, self._draft)
        stops = (
            (start // block + 1) * block if start % block else 0,
            last_boundary,
            tail if tail > last_boundary else 0,
            request.shared_prefix_boundary // block * block,
            *self._retention.stops(request, block),
        )
        return min((stop for stop in stops if start < stop < end), default=end) - start


def resume_position(num_tokens: int, unit: int, draft: bool) -> int:
    """The last multiple of ``unit`` from which a request of the same ``num_tokens`` tokens can resume.

    Its last token must be computed, since the next one is sampled from it. With a draft model, the unit that hits
    drop already includes it.
    """
    return max(num_tokens // unit * unit - unit, 0) if draft else (num_tokens - 1) // unit * unit
