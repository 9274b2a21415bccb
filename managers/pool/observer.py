"""Observers of a block pool."""

from __future__ import annotations

from collections.abc import Iterable

from mypy_extensions import mypyc_attr

from kvhybrid.managers.arrays import IntArray


@mypyc_attr(allow_interpreted_subclasses=True)
class PoolObserver:
    """Is called at every change of a block pool, in batches. A subclass overrides the calls that it needs.

    Keys are pairs of group and prefix number. ``stored`` and ``removed`` are about keys and not about blocks: a
    key is stored when its first block is keyed, and removed when its last block loses it.
    """

    def taken(self, ids: IntArray) -> None:
        """Blocks were handed out from the free queue."""

    def held(self, ids: IntArray) -> None:
        """Free cached blocks were adopted again."""

    def freed(self, ids: IntArray) -> None:
        """Blocks were returned to the free queue."""

    def evicted(self, ids: IntArray, groups: IntArray) -> None:
        """Cached blocks, of ``groups``, are about to lose their keys because they are reused."""

    def stored(self, groups: IntArray, numbers: IntArray) -> None:
        """Keys were added: ``numbers`` in each of ``groups``."""

    def removed(self, groups: IntArray, numbers: IntArray) -> None:
        """Keys were dropped: each of ``numbers`` in the group at the same index."""

    def cleared(self, groups: IntArray, numbers: IntArray) -> None:
        """All keys, which are given, were dropped at once."""


class ObserverSet:
    """Observers by the calls that their class overrides: what no observer needs is not gathered."""

    def __init__(self, observers: Iterable[PoolObserver] = ()) -> None:
        self.all = tuple(observers)
        self.of_taken = [o for o in self.all if type(o).taken is not PoolObserver.taken]
        self.of_held = [o for o in self.all if type(o).held is not PoolObserver.held]
        self.of_freed = [o for o in self.all if type(o).freed is not PoolObserver.freed]
        self.of_evicted = [o for o in self.all if type(o).evicted is not PoolObserver.evicted]
        self.of_keys = [o for o in self.all if _takes_keys(type(o))]


def _takes_keys(kind: type[PoolObserver]) -> bool:
    calls = (kind.stored, kind.removed, kind.cleared)
    return calls != (PoolObserver.stored, PoolObserver.removed, PoolObserver.cleared)
