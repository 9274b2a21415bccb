"""MIN: evict what is used again farthest in the future (Belady 1966), with bypass.

Requests run one at a time. Between two references to a unit lies a span, which is worth one hit unit if the unit
is held through all of it. At most ``capacity`` units are held at once. For spans of equal worth, it is optimal
to keep those that end first. A prefix is used no later than what continues it, so one of the optimal choices is
closed under prefixes, and its hits are prefixes of prompts.

Source: L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", 1966.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from kvhybrid.replay.bounds.references import Ints, References


def units_hit(references: References, capacity: int | None) -> Ints:
    """Per request, the units that it hits in an optimal cache of ``capacity`` units; None: without a limit."""
    held = [0] * references.num_requests
    """Units that are kept for each request."""
    farthest: list[int] = []
    """Negated requests for which units may be kept: a heap."""
    hits = np.zeros(references.num_requests, np.int64)
    total = 0
    room = len(references.numbers) if capacity is None else capacity
    for request, runs in enumerate(references.runs):
        hits[request] = held[request]
        total -= held[request]
        held[request] = 0
        for following, units in runs:
            if not held[following]:
                heappush(farthest, -following)
            held[following] += units
            total += units
        while total > room:
            last = -farthest[0]
            dropped = min(held[last], total - room)
            held[last] -= dropped
            total -= dropped
            if not held[last]:
                heappop(farthest)
    return hits
