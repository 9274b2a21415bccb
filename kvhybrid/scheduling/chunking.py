"""Prefill chunking: where a step must end so that recurrent states are kept where others can resume."""

from __future__ import annotations

from math import lcm

from kvhybrid.cache.config import KVCacheConfig
from kvhybrid.cache.request import Request


class PrefillChunking:
    """Clips the steps of a prefill where a group keeps states.

    Attention can stop anywhere: its blocks hold every token. A state exists only at the end of a step, so a
    later request can resume from a position only if a step ended there. The price is shorter chunks; the
    tokens computed are the same. Decode steps and caches without cacheable states are never clipped.
    """

    def __init__(self, config: KVCacheConfig, alignment: int) -> None:
        """``alignment`` is what hits of this cache are multiples of, in tokens."""
        states = [config.block_size_of(g.spec) for g in config.groups if g.spec.state and g.spec.cacheable]
        self._active = bool(states)
        self._draft = any(group.draft for group in config.groups)
        self._unit = alignment
        # A state on a block boundary that no hit can end on would serve nobody.
        self._block = lcm(alignment, *states)

    def clip(self, request: Request, start: int, num_tokens: int) -> int:
        """How many of the ``num_tokens`` tokens from position ``start`` on this step computes: at least 1.

        The step ends at the first of these that lies inside it:

        - the next block boundary, where it starts inside a block (after a hit that ended there, or a short
          step);
        - the last position from which a request with the same tokens resumes;
        - the same for the prompt at the granularity of hits, where hits may end inside a block;
        - the last block boundary before the junction, up to which another group proved the prefix shared.

        A step that the budget ends before the prefill does ends on a block boundary, if it reaches one. It is
        never put off: a state inside a block is exact, it just gets no key.
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
        )
        return min((stop for stop in stops if start < stop < end), default=end) - start


def resume_position(num_tokens: int, unit: int, draft: bool) -> int:
    """The last multiple of ``unit`` from which a request of the same ``num_tokens`` tokens can resume.

    Its last token must be computed, since the next one is sampled from it. A draft model's hit drops one
    unit, which serves as that margin.
    """
    return max(num_tokens // unit * unit - unit, 0) if draft else (num_tokens - 1) // unit * unit
