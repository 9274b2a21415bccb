"""The blocks of one kind, carved from large pages."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kvhybrid.managers.arrays import EMPTY, IntArray
from kvhybrid.managers.eviction.base import MakeOrder
from kvhybrid.managers.pool.block_pool import BlockPool
from kvhybrid.managers.pool.keys import BlockPoolError
from kvhybrid.managers.pool.large_pages import LargePages


class SmallPagePool(BlockPool):
    """Block ``page * smalls + slot`` is a part of a large page.

    Only the blocks of assigned pages exist. A free one is *unused* or, if it still has its place in the order of
    reuse, cached. Blocks are taken in two steps: `set_aside` chooses them, and `take_rows` hands them out.
    """

    def __init__(self, pages: LargePages, kind: int, smalls: int, num_groups: int, order: MakeOrder) -> None:
        super().__init__(pages.num_pages * smalls, num_groups, order)
        self.pages = pages
        self.kind = kind
        self.smalls = smalls
        """Blocks per large page."""
        self.num_free = 0
        self.num_whole = 0
        """Whole pages of this kind."""
        self.num_unused = 0
        self._held: IntArray = np.zeros(pages.num_pages, np.int32)
        """Of each page, the blocks that are held or set aside."""
        self._unused: IntArray = np.zeros(pages.num_pages, np.int32)
        """Of each page, the unused blocks."""
        self._open: dict[int, None] = {}
        """The pages with unused blocks, the one that has had some for the longest time first."""
        self._aside = EMPTY
        self._next_unused = self.num_blocks  # blocks that were never used are not handed out one by one

    @property
    def usage(self) -> float:
        """Share of the blocks that there could be which are held, 0 to 1."""
        usable = self.num_blocks - self.smalls
        return float(self._held.sum()) / usable if usable else 0.0

    # ---- what a step would take

    def pages_for(self, count: int) -> int:
        """The large pages of which no block is held that ``count`` free blocks need."""
        nearby = self.num_free - self.smalls * self.num_whole
        return -(-(count - nearby) // self.smalls) if count > nearby else 0

    def count_pinned(self, hit: IntArray) -> int:
        """The whole pages that the adoption of ``hit`` makes partly held."""
        pages = np.unique(hit[(hit > 0) & (self.refs[hit] == 0)] // self.smalls)
        return int(np.count_nonzero(self._held[pages] == 0))

    def unused_near(self, held: IntArray, count: int) -> IntArray:
        """At most ``count`` unused blocks on the pages of ``held``, in the order of ``held``."""
        if not count or not self.num_unused:
            return EMPTY
        pages = held.ravel() // self.smalls
        found, first = np.unique(pages[self._unused[pages] > 0], return_index=True)
        return self._unused_of(found[np.argsort(first)].tolist(), count)

    def _unused_of(self, pages: Iterable[int], count: int) -> IntArray:
        """The first ``count`` unused blocks of ``pages``, or all of them."""
        parts: list[IntArray] = []
        for page in pages:
            if not count:
                break
            ids = self._blocks_of(page)
            part = ids[(self.refs[ids] == 0) & (self.release_of[ids] == 0)][:count]
            parts.append(part)
            count -= len(part)
        return np.concatenate(parts) if parts else EMPTY

    def _blocks_of(self, page: int) -> IntArray:
        return np.arange(page * self.smalls, (page + 1) * self.smalls, dtype=np.int32)

    # ---- taking and releasing

    def set_aside(self, count: int, nearby: IntArray, num_pages: int) -> None:
        """Choose the next ``count`` blocks: those of ``nearby``, those of ``num_pages`` spare pages, other unused
        blocks, and finally cached ones in the order of reuse."""
        cached = count - self.num_unused - num_pages * self.smalls
        reused = self._reuse(cached) if cached > 0 else EMPTY  # first, since an order may raise
        left = count - len(reused) - len(nearby)
        self._use_up(nearby)
        parts = [nearby]
        for _ in range(num_pages):
            page = self.pages.assign(self.kind)
            self._add_unused(page, self.smalls)
            self.num_free += self.smalls
            part = self._blocks_of(page)[:left]
            self._use_up(part)
            parts.append(part)
            left -= len(part)
        if left:
            part = self._unused_of(list(self._open), left)
            self._use_up(part)
            parts.append(part)
        self.release_of[reused] = 0  # not before, or they would count as unused
        self._aside = np.concatenate([*parts, reused])
        np.add.at(self._held, self._aside // self.smalls, 1)
        self.num_free -= count

    def put_back(self) -> None:
        """Return what was set aside and not handed out."""
        ids, self._aside = self._aside, EMPTY
        if len(ids):
            self.num_free += len(ids)
            self._set_free(ids)

    def _draw(self, count: int) -> IntArray:
        if not 0 <= count <= len(self._aside):
            raise BlockPoolError(f"{count} blocks asked for, {len(self._aside)} were set aside")
        ids, self._aside = self._aside[:count], self._aside[count:]
        return ids

    def hold(self, ids: IntArray) -> None:
        free = np.unique(ids[(ids > 0) & (self.refs[ids] == 0)])
        super().hold(ids)
        if len(free):
            np.add.at(self._held, free // self.smalls, 1)
            for page in np.unique(free // self.smalls).tolist():
                if self.pages.whole.pop(page, None) is not None:
                    self.num_whole -= 1

    def release(self, ids: IntArray) -> None:
        super().release(ids)
        self._stacked = 0  # blocks without a key are found through their page
        every = ids.ravel()
        free = every[(every > 0) & (self.refs[every] == 0)]
        if len(free):
            first = np.sort(np.unique(free, return_index=True)[1])
            self._set_free(free[first])

    def _set_free(self, ids: IntArray) -> None:
        """``ids``, in the order in which they are to be reused, are no longer held."""
        pages = ids // self.smalls
        np.subtract.at(self._held, pages, 1)
        bare, counts = np.unique(pages[self.release_of[ids] == 0], return_counts=True)
        for page, count in zip(bare.tolist(), counts.tolist(), strict=True):
            self._add_unused(page, count)
        found, first = np.unique(pages, return_index=True)
        for page in found[np.argsort(first)].tolist():
            if not self._held[page]:
                self._has_become_whole(page)

    def _has_become_whole(self, page: int) -> None:
        if self._unused[page] == self.smalls:
            self._give_back(page)
        else:
            self.pages.whole[page] = self.kind
            self.num_whole += 1

    def _give_back(self, page: int) -> None:
        self.num_unused -= int(self._unused[page])
        self.num_free -= self.smalls
        self._unused[page] = 0
        self._open.pop(page, None)
        self.pages.give_back(page)

    def _add_unused(self, page: int, count: int) -> None:
        self._unused[page] += count
        self.num_unused += count
        self._open.setdefault(page)

    def _use_up(self, ids: IntArray) -> None:
        """``ids`` are no longer unused."""
        self.num_unused -= len(ids)
        pages, counts = np.unique(ids // self.smalls, return_counts=True)
        self._unused[pages] -= counts.astype(np.int32)
        for page in pages[self._unused[pages] == 0].tolist():
            del self._open[page]

    # ---- keys

    def vacate(self, page: int) -> None:
        """Evict every block of a whole page, and give the page back."""
        ids = self._blocks_of(page)
        cached = ids[self.release_of[ids] > 0]
        try:
            self._order.remove(cached, self.release_of[cached])
        except Exception as error:
            raise self._order_failed(error) from error
        self.release_of[cached] = 0
        self._lose_keys(cached)
        del self.pages.whole[page]
        self.num_whole -= 1
        self._add_unused(page, len(cached))
        self._give_back(page)

    def evict(self, ids: Iterable[int]) -> None:
        chosen = list(ids)
        super().evict(chosen)
        for page in sorted({block // self.smalls for block in chosen}):
            if self.pages.whole.get(page) == self.kind and not self.keys.number_of[self._blocks_of(page)].any():
                self.vacate(page)

    def discard(self, ids: IntArray) -> None:
        free = ids[self.release_of[ids] > 0]
        super().discard(ids)
        self._stacked = 0
        pages, counts = np.unique(free // self.smalls, return_counts=True)
        for page, count in zip(pages.tolist(), counts.tolist(), strict=True):
            self._add_unused(page, count)
            if self._unused[page] == self.smalls:
                del self.pages.whole[page]
                self.num_whole -= 1
                self._give_back(page)

    def reset(self) -> bool:
        if self._held.any():
            return False
        self.release_of[:] = 0
        self._use_order(self._make_order(self.info))
        self.keys.drop_all()
        self._count_pages()
        return True

    # ---- after a roll-back

    def recount(self) -> None:
        super().recount()
        self._stacked, self._aside = 0, EMPTY
        self._count_pages()

    def _count_pages(self) -> None:
        """Recompute what is held and unused on each page of this kind."""
        shape = (self.pages.num_pages, self.smalls)
        held = self.refs.reshape(shape) > 0
        queued = self.release_of.reshape(shape) > 0
        owned = self.pages.owner == self.kind
        self._held = held.sum(axis=1).astype(np.int32)
        self._unused = ((~held & ~queued).sum(axis=1) * owned).astype(np.int32)
        self.num_free = int((~held).sum(axis=1)[owned].sum())
        self.num_unused = int(self._unused.sum())
        self._open = dict.fromkeys(np.flatnonzero(self._unused).tolist())
        self.num_whole = 0
        was = [page for page, kind in self.pages.whole.items() if kind == self.kind]
        for page in was:
            del self.pages.whole[page]
        for page in dict.fromkeys([*was, *np.flatnonzero(owned).tolist()]):
            if not self._held[page]:
                self._has_become_whole(page)

    # ---- looking

    def free_queue(self) -> list[int]:
        """All free blocks of assigned pages, without regard to large pages."""
        unused: list[int] = self._unused_of(self._open, self.num_unused).tolist()
        return [*unused, *map(int, self._order)]
