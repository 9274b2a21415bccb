"""The ledger of misses: what was computed and what was evicted, hence the cause of every miss."""

from __future__ import annotations

from typing import Final

import numpy as np

from kvhybrid.cache.stats import MissCauses
from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.managers.kernel import mark_all, mark_each
from kvhybrid.managers.pool.observer import PoolObserver

ROW: Final = np.zeros(1, np.int32)
"""The only row of marks that all groups share."""


class MissLedger(PoolObserver):
    """Remembers, by prefix number, what was computed and which keys were lost, and finds the cause of a miss.

    It remembers as long as the index keeps the prefix numbers: a prefix that was neither computed nor lost between
    the last two sweeps is forgotten and counts as never seen afterwards.
    """

    def __init__(self, num_groups: int) -> None:
        self._computed = np.zeros((1, 1), np.int32)
        """By prefix number, the period between two sweeps in which it was last computed, 0 for never."""
        self._lost = np.zeros((num_groups, 1), np.int32)
        """By group and number, the period in which its key was lost, 0 if the key exists or never did."""
        self._period = 1

    # ---- memory

    @property
    def room(self) -> int:
        """Prefix numbers below this can be remembered."""
        return int(self._lost.shape[1])

    def grow(self, numbers: int) -> None:
        """Make room for prefix numbers below ``numbers``."""
        have = self.room
        if numbers > have:
            more = ((0, 0), (0, max(numbers, 2 * have) - have))
            self._computed, self._lost = np.pad(self._computed, more), np.pad(self._lost, more)

    def computed(self, numbers: IntArray) -> None:
        """A request has computed the prefixes of ``numbers``."""
        mark_all(self._computed, ROW, numbers, self._period)

    def stored(self, groups: IntArray, numbers: IntArray) -> None:
        mark_all(self._lost, groups, numbers, 0)

    def removed(self, groups: IntArray, numbers: IntArray) -> None:
        mark_each(self._lost, groups, numbers, self._period)

    def cleared(self, groups: IntArray, numbers: IntArray) -> None:
        self.removed(groups, numbers)

    def mark_remembered(self, needed: np.ndarray) -> None:
        """Mark in ``needed``, a mask by number, what was computed or lost since the last sweep."""
        for marks in (*self._computed, *self._lost):
            needed |= marks[: len(needed)] == self._period
        self._period += 1

    def forget(self, spans: list[tuple[int, int]]) -> None:
        """The numbers ``[first, end)`` of each span are recycled."""
        for first, end in spans:
            self._computed[:, first:end] = 0
            self._lost[:, first:end] = 0

    # ---- causes

    def causes(
        self, manager: SingleTypeKVCacheManager, path: IntArray, num_tokens: int, hit: int, own: int
    ) -> MissCauses:
        """Why tokens of a request were not hit, for one group of ``manager``.

        The rules that limit a hit are lifted one after another; each cost the tokens by which the hit then grows.

        Args:
            path: The request's prefix numbers.
            num_tokens: Tokens of the request.
            hit: Tokens of the joint hit.
            own: Tokens of the longest hit that this group alone could have given.
        """
        if not manager.spec.cacheable:
            return MissCauses(opted_out=num_tokens - hit)
        unit, alignment = manager.granularity, manager.rules.alignment
        loose = manager.loose_search(path, unit)
        unaligned = loose.at_most(num_tokens)
        if unit == alignment and not manager.margin:
            whole = undropped = unaligned = max(unaligned, own)  # the same search by three names
        else:
            whole = max(manager.search(path).at_most(num_tokens), own)
            undropped = max(manager.loose_search(path, alignment).at_most(num_tokens), whole)
            unaligned = max(unaligned, undropped)
        end = num_tokens - num_tokens % alignment
        hash_unit, per_step = manager.rules.hash_unit, unit // manager.rules.hash_unit
        seen = self._computed[0, path[unaligned // hash_unit + per_step - 1 : end // hash_unit : per_step]] > 0
        evicted = not_retained = 0
        if seen.any():
            lacked = path[manager.lacking(path, loose, unaligned, end)]
            lost = seen & (self._lost[manager.group_ids[:, None], lacked] > 0).any(axis=0)
            evicted = int(lost.sum()) * unit
            not_retained = int(seen.sum()) * unit - evicted
        return MissCauses(
            other_group=own - hit,
            last_token=whole - own,
            draft_drop=undropped - whole,
            granularity=unaligned - undropped + num_tokens - max(end, unaligned),
            not_retained=not_retained,
            evicted=evicted,
            never_seen=max(end - unaligned, 0) - evicted - not_retained,
        )
