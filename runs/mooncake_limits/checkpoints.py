"""What rules of checkpointing cost an unlimited cache: a hit ends on a prefix whose end has a stored state.

Every id is a block that may store the state at its end; a request can resume from the deepest stored state of its
prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kvhybrid.replay.trace import TraceRequest
from runs.mooncake_limits.trace_rule import ID_TOKENS

Rule = Callable[[int, int], Iterable[int]]
"""From a prompt's number of ids and of ids seen before, the indices that store a state."""


def every(interval: int) -> Rule:
    """Every ``interval``-th id, and the last one."""
    return lambda ids, seen: {*range(interval - 1, ids, interval), ids - 1}


def last(ids: int, seen: int) -> Iterable[int]:
    """The last id."""
    return (ids - 1,)


def last_and_branch(ids: int, seen: int) -> Iterable[int]:
    """The last id, and the one at which the prompt leaves what was seen before."""
    return {ids - 1, seen - 1} if seen else (ids - 1,)


RULES: dict[str, Rule] = {
    "every block": every(1),
    "every 4th + last": every(4),
    "every 16th + last": every(16),
    "last only": last,
    "last + branch": last_and_branch,
}


def unlimited(requests: Iterable[TraceRequest], rule: Rule) -> tuple[float, int]:
    """Token hit rate in per cent, and states stored."""
    seen: set[int] = set()
    states: set[int] = set()
    hit = asked = 0
    for request in requests:
        ids = request.prefix_ids.tolist()[: request.num_prompt_tokens // ID_TOKENS]
        known = next((at for at, block in enumerate(ids) if block not in seen), len(ids))
        usable = ids[: (request.num_prompt_tokens - 1) // ID_TOKENS]
        hit += ID_TOKENS * max((at + 1 for at, block in enumerate(usable) if block in states), default=0)
        asked += request.num_prompt_tokens
        seen.update(ids)
        if ids:
            states.update(ids[at] for at in rule(len(ids), known))
    return 100 * hit / asked, len(states)
