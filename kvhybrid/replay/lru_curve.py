"""Hit rates of LRU at many pool sizes in one pass over a trace.

For one full-attention group, one request at a time, and outputs that no prompt contains. Cached blocks lie on a
stack, the most recently used on top; a request puts its blocks there with its first block uppermost. The cached
blocks of a smaller pool are the upper part of the same stack, so a pool of any size is described by one number:
how many blocks from the top are cached. A block is hit where its depth in the stack is at most that number
(Mattson et al. 1970).

What a request needs in excess of its hit is taken from free blocks without a key first, then from the bottom of
the cached part: so the number shrinks with long requests, and grows again with the request's own full blocks.

Source: R. L. Mattson et al., "Evaluation techniques for storage hierarchies", 1970.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvhybrid.replay.bounds.references import Ints, References
from kvhybrid.replay.trace import TraceRequest


class _Counts:
    """Blocks by the request that used them last; counts of all later requests in logarithmic time."""

    def __init__(self, size: int) -> None:
        self._tree = [0] * (size + 1)

    def add(self, request: int, blocks: int) -> None:
        at = request + 1
        while at < len(self._tree):
            self._tree[at] += blocks
            at += at & -at

    def up_to(self, request: int) -> int:
        """Blocks that were last used by ``request`` or an earlier one."""
        found, at = 0, request + 1
        while at:
            found += self._tree[at]
            at &= at - 1
        return found


class LruHits(NamedTuple):
    """Per size of the pool."""

    tokens: Ints
    """Tokens hit; -1 where a request does not fit."""
    exact: NDArray[np.bool_]
    """False where two cached copies of a block were to choose from, so that a replay may differ."""


def lru_hit_tokens(
    requests: Sequence[TraceRequest], block_size: int, part_tokens: int, sizes: Sequence[int]
) -> LruHits:
    """The hits for each number of usable blocks in ``sizes``."""
    references = References.of_requests(requests, block_size, part_tokens)
    latest = _latest_use(references)
    capacity = np.array(sizes, np.int64)
    cached = np.zeros(len(sizes), np.int64)
    hits = np.zeros(len(sizes), np.int64)
    fits, exact = np.ones(len(sizes), bool), np.ones(len(sizes), bool)
    doubled: dict[int, int] = {}
    """Of each unit that was computed again, the request that used its oldest copy last."""
    stack, copies, total = _Counts(len(requests)), [0] * len(requests), 0
    for index, request in enumerate(requests):
        uses = latest[references.starts[index] : references.starts[index + 1]]
        computed = request.num_tokens - 1
        numbers = references.numbers[references.starts[index] : references.starts[index + 1]]
        for number in doubled.keys() & set(numbers.tolist()) if doubled else ():
            exact &= cached <= total - stack.up_to(doubled[number])
        depths = _depths(uses, stack, copies, total)
        usable = depths[: references.usable[index]]
        hit = np.searchsorted(usable, cached, side="right")
        hits += hit * block_size
        needed = -(-computed // block_size) - hit
        evicted = np.maximum(needed - (capacity - cached), 0)
        fits &= evicted <= cached - hit
        cached += computed // block_size - hit - evicted
        total += computed // block_size - len(usable)
        for use, count in _runs(uses[: len(usable)]):
            stack.add(use, -count)
        # A block behind the last usable one may be cached all the same: it is computed again, and the older copy
        # stays where it is until it is evicted.
        for at in range(len(usable), len(depths)):
            copies[uses[at]] += 1
            doubled.setdefault(int(numbers[at]), int(uses[at]))
        stack.add(index, computed // block_size)
    return LruHits(np.where(fits, hits, -1), exact)


def _latest_use(references: References) -> Ints:
    """Of each reference, the previous request that refers to its unit; -1 if there is none."""
    order = np.argsort(references.numbers, kind="stable")
    same = references.numbers[order[1:]] == references.numbers[order[:-1]]
    found = np.full(len(references.numbers), -1, np.int64)
    found[order[1:][same]] = references.request_of[order[:-1][same]]
    return found


def _runs(uses: Ints) -> list[tuple[int, int]]:
    """Consecutive equal values and how often they occur."""
    if not len(uses):
        return []
    ends = np.append(np.flatnonzero(np.diff(uses)) + 1, len(uses))
    counts = np.diff(ends, prepend=0)
    return list(zip(uses[ends - 1].tolist(), counts.tolist(), strict=True))


def _depths(uses: Ints, stack: _Counts, copies: list[int], total: int) -> Ints:
    """The depths in the stack, from 1, of a request's blocks that were used before: an ascending array.

    Later requests use a prefix of what an earlier one used, so that what remains of it is its deepest part.
    """
    found: list[Ints] = []
    for use, count in _runs(uses):
        if use < 0:
            break
        above = total - stack.up_to(use) + copies[use]
        found.append(np.arange(above + 1, above + count + 1, dtype=np.int64))
    return np.concatenate(found) if found else np.zeros(0, np.int64)
