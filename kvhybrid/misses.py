"""The ledger of misses: what was computed, what was lost, and so the cause of every miss."""

from __future__ import annotations

import numpy as np

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.managers.observer import PoolObserver
from kvhybrid.miss_causes import MissCauses


class MissLedger(PoolObserver):
    """Remembers, by prefix number, what was computed and which keys were lost, and names the cause of a miss.

    The memory is as long as the prefix numbers live: what was neither computed nor lost between the last two
    sweeps is forgotten and counts as never seen afterwards.
    """

    def __init__(self, num_groups: int) -> None:
        self._computed = np.zeros(1, bool)
        self._lost = np.zeros((num_groups, 1), bool)
        self._touched = np.zeros(1, np.int32)
        self._sweeps = 1

    # ---- memory

    def grow(self, numbers: int) -> None:
        """Make room for prefix numbers below ``numbers``."""
        have = len(self._computed)
        if numbers > have:
            more = max(numbers, 2 * have) - have
            self._computed = np.pad(self._computed, (0, more))
            self._touched = np.pad(self._touched, (0, more))
            self._lost = np.pad(self._lost, ((0, 0), (0, more)))

    def computed(self, numbers: IntArray) -> None:
        """A request has computed the prefixes behind ``numbers``."""
        self._computed[numbers] = True
        self._touched[numbers] = self._sweeps

    def stored(self, groups: IntArray, numbers: IntArray) -> None:
        for group in groups.tolist():
            self._lost[group, numbers] = False

    def removed(self, groups: IntArray, numbers: IntArray) -> None:
        self._lost[groups, numbers] = True
        self._touched[numbers] = self._sweeps

    def cleared(self, groups: IntArray, numbers: IntArray) -> None:
        self.removed(groups, numbers)

    def mark_remembered(self, needed: np.ndarray) -> None:
        """Add to ``needed`` (by number) what happened since the last sweep."""
        needed |= self._touched[: len(needed)] == self._sweeps
        self._sweeps += 1

    def forget(self, numbers: IntArray) -> None:
        """These numbers will stand for other prefixes."""
        self._computed[numbers] = False
        self._lost[:, numbers] = False

    # ---- causes

    def causes(
        self, manager: SingleTypeKVCacheManager, path: IntArray, num_tokens: int, hit: int, own: int
    ) -> MissCauses:
        """Where the tokens of a request that hit ``hit`` and could have hit ``own`` went, in one group of
        ``manager``. The rules are lifted one after another; what each gives back is what it cost."""
        if not manager.spec.cacheable:
            return MissCauses(opted_out=num_tokens - hit)
        unit = manager.granularity
        whole = max(manager.search(path).at_most(num_tokens), own)
        undropped = max(manager.loose_search(path, manager.rules.alignment).at_most(num_tokens), whole)
        loose = manager.loose_search(path, unit)
        unaligned = max(loose.at_most(num_tokens), undropped)
        end = num_tokens - num_tokens % manager.rules.alignment
        lengths = np.arange(unaligned + unit, end + 1, unit)
        seen = self._computed[path[lengths // manager.rules.hash_unit - 1]]
        evicted = not_retained = 0
        if seen.any():
            lacked = path[manager.lacking(path, loose, unaligned, end)]
            lost = seen & self._lost[manager.group_ids[:, None], lacked].any(axis=0)
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
