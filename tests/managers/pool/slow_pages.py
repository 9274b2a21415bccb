"""Large pages in plain Python, block by block: the oracle of `LcmPools`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class SlowPage:
    """An assigned large page."""

    kind: int
    number: int
    smalls: int
    held: dict[int, int] = field(default_factory=dict)
    """References of each held block."""
    cached: set[int] = field(default_factory=set)

    @property
    def blocks(self) -> range:
        return range(self.number * self.smalls, (self.number + 1) * self.smalls)

    @property
    def unused(self) -> list[int]:
        return [block for block in self.blocks if block not in self.held and block not in self.cached]


class SlowPages:
    """The rules of `LcmPools`, each written down as a search over all pages."""

    def __init__(self, num_pages: int, smalls: tuple[int, ...]) -> None:
        self.smalls = smalls
        self.spare = [*range(num_pages - 1, 0, -1)]
        """The next one last."""
        self.pages: dict[int, SlowPage] = {}
        self.whole: list[int] = []
        """The next one first."""
        self.opened: list[list[int]] = [[] for _ in smalls]
        """Per kind, the pages with unused blocks in the order in which they got some."""
        self.queue: list[list[int]] = [[] for _ in smalls]
        """Per kind, the cached free blocks, the next one first."""
        self.keyed: list[set[int]] = [set() for _ in smalls]

    def of(self, kind: int) -> list[SlowPage]:
        return [page for page in self.pages.values() if page.kind == kind]

    def page(self, kind: int, block: int) -> SlowPage:
        return self.pages[block // self.smalls[kind]]

    @property
    def num_unheld(self) -> int:
        return len(self.spare) + sum(not page.held for page in self.pages.values())

    def pages_needed(self, counts: list[int]) -> list[int]:
        """Per kind, pages of which no block is held that it needs once its partly held pages are full."""
        needed = []
        for kind, count in enumerate(counts):
            beside = sum(page.smalls - len(page.held) for page in self.of(kind) if page.held)
            needed.append(-(-max(0, count - beside) // self.smalls[kind]))
        return needed

    def fits(self, counts: list[int]) -> bool:
        return sum(self.pages_needed(counts)) <= self.num_unheld

    def take(self, counts: list[int], mine: list[list[int]]) -> list[list[int]]:
        """Take ``counts`` blocks of each kind for a request that holds ``mine``."""
        needed = self.pages_needed(counts)
        surplus = self.num_unheld - sum(needed)
        grants = []
        for kind, count in enumerate(counts):
            own = [b for page in self.request_pages(kind, mine[kind]) for b in page.unused]
            wanted = max(0, -(-(count - len(own)) // self.smalls[kind]))
            grants.append(min(wanted, needed[kind] + surplus))
            surplus -= grants[kind] - needed[kind]
        while len(self.spare) < sum(grants):
            self.evict_page(self.whole[0])
        return [self.take_kind(kind, counts[kind], mine[kind], grants[kind]) for kind in range(len(counts))]

    def request_pages(self, kind: int, mine: list[int]) -> list[SlowPage]:
        return list({self.page(kind, block).number: self.page(kind, block) for block in mine}.values())

    def take_kind(self, kind: int, count: int, mine: list[int], grant: int) -> list[int]:
        taken = [b for page in self.request_pages(kind, mine) for b in page.unused][:count]
        self.hold(kind, taken)
        for _ in range(grant):
            number = self.spare.pop()
            page = self.pages[number] = SlowPage(kind, number, self.smalls[kind])
            self.opened[kind].append(number)
            part = page.unused[: count - len(taken)]
            self.hold(kind, part)
            taken += part
        for number in list(self.opened[kind]):
            part = self.pages[number].unused[: count - len(taken)]
            self.hold(kind, part)
            taken += part
        while len(taken) < count:
            block = self.queue[kind][0]
            self.hold(kind, [block])
            self.keyed[kind].discard(block)
            taken.append(block)
        return taken

    def hold(self, kind: int, blocks: list[int]) -> None:
        for block in blocks:
            page = self.page(kind, block)
            page.held[block] = page.held.get(block, 0) + 1
            if block in page.cached:
                page.cached.remove(block)
                self.queue[kind].remove(block)
            if page.number in self.whole:
                self.whole.remove(page.number)
            if not page.unused and page.number in self.opened[kind]:
                self.opened[kind].remove(page.number)

    def release(self, kind: int, blocks: list[int]) -> None:
        freed = []
        for block in blocks:
            page = self.page(kind, block)
            page.held[block] -= 1
            if not page.held[block]:
                del page.held[block]
                freed.append(block)
                if block in self.keyed[kind]:
                    page.cached.add(block)
                    self.queue[kind].append(block)
        bare = sorted({b // self.smalls[kind] for b in freed if b not in self.keyed[kind]})
        self.opened[kind] += [number for number in bare if number not in self.opened[kind]]
        for number in dict.fromkeys(b // self.smalls[kind] for b in freed):
            if not self.pages[number].held:
                self.whole.append(number)
                if not self.pages[number].cached:
                    self.evict_page(number)

    def drop_keys(self, kind: int, blocks: list[int]) -> None:
        """Free blocks keep their place; a page that has no key left and no held block goes back."""
        self.keyed[kind] -= set(blocks)
        for number in sorted({block // self.smalls[kind] for block in blocks}):
            page = self.pages.get(number)
            if page and page.kind == kind and number in self.whole and not self.keyed[kind] & set(page.blocks):
                self.evict_page(number)

    def evict_page(self, number: int) -> None:
        page = self.pages.pop(number)
        self.whole.remove(number)
        self.queue[page.kind] = [block for block in self.queue[page.kind] if block not in page.cached]
        self.keyed[page.kind] -= page.cached
        if number in self.opened[page.kind]:
            self.opened[page.kind].remove(number)
        self.spare.append(number)
