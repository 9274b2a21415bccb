"""The orders of reuse by their definitions: plain Python, block by block."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable


class Oracle:
    """``free`` has the blocks that can be reused; `key_of` gives a block's group and prefix."""

    def __init__(self, num_blocks: int, key_of: Callable[[int], tuple[int, int]]) -> None:
        self.num_blocks = num_blocks
        self.key_of = key_of
        self.free: list[int] = []
        """From the least recently released one on."""

    def append(self, ids: list[int], request: object, is_end: bool) -> None:
        self.free += ids

    def hit(self, ids: list[int]) -> None:
        self.free = [b for b in self.free if b not in ids]

    def pop(self) -> int:
        block = self.choose()
        self.free.remove(block)
        return block

    def choose(self) -> int:
        return self.free[0]


class LifetimeOracle(Oracle):
    def __init__(self, num_blocks: int, key_of: Callable[[int], tuple[int, int]]) -> None:
        super().__init__(num_blocks, key_of)
        self.dropped: OrderedDict[object, list[int]] = OrderedDict()

    def append(self, ids: list[int], request: object, is_end: bool) -> None:
        if is_end:
            self.free += ids + self.dropped.pop(request, [])
        else:
            self.dropped.setdefault(request, []).extend(ids)

    def hit(self, ids: list[int]) -> None:
        super().hit(ids)
        for mine in self.dropped.values():
            mine[:] = [b for b in mine if b not in ids]

    def pop(self) -> int:
        if self.free:
            return super().pop()
        return next(mine for mine in self.dropped.values() if mine).pop(0)


class FIFOOracle(Oracle):
    def __init__(self, num_blocks: int, key_of: Callable[[int], tuple[int, int]]) -> None:
        super().__init__(num_blocks, key_of)
        self.line: list[int] = []
        self.missed: set[int] = set()

    def append(self, ids: list[int], request: object, is_end: bool) -> None:
        self.free += ids
        self.line += [b for b in ids if b not in self.line and b not in self.missed]

    def choose(self) -> int:
        for block in self.free:
            if block in self.missed:
                self.missed.remove(block)
                return block
        while True:
            block = self.line.pop(0)
            if block in self.free:
                return block
            self.missed.add(block)


class LFUOracle(Oracle):
    def __init__(self, num_blocks: int, key_of: Callable[[int], tuple[int, int]]) -> None:
        super().__init__(num_blocks, key_of)
        self.hits: Counter[int] = Counter()

    def hit(self, ids: list[int]) -> None:
        super().hit(ids)
        self.hits.update(ids)

    def choose(self) -> int:
        block = min(self.free, key=lambda b: self.hits[b])  # the first of the least
        del self.hits[block]
        return block


class SieveOracle(Oracle):
    def __init__(self, num_blocks: int, key_of: Callable[[int], tuple[int, int]]) -> None:
        super().__init__(num_blocks, key_of)
        self.line: list[int] = []
        self.hand = 0
        self.visited: set[int] = set()

    def append(self, ids: list[int], request: object, is_end: bool) -> None:
        self.free += ids
        for block in ids:
            if block not in self.line:
                self.line.append(block)
                self.visited.discard(block)

    def hit(self, ids: list[int]) -> None:
        super().hit(ids)
        self.visited.update(ids)

    def choose(self) -> int:
        while True:
            if self.hand == len(self.line):
                self.hand = 0
            block = self.line[self.hand]
            if block in self.free and block not in self.visited:
                del self.line[self.hand]
                return block
            self.visited.discard(block)
            self.hand += 1


class S3FIFOOracle(Oracle):
    def __init__(self, num_blocks: int, key_of: Callable[[int], tuple[int, int]]) -> None:
        super().__init__(num_blocks, key_of)
        self.limit = num_blocks // 10
        self.small: list[int] = []
        self.main: list[int] = []
        self.hits: Counter[int] = Counter()
        self.ghosts: list[tuple[int, int]] = []

    def append(self, ids: list[int], request: object, is_end: bool) -> None:
        self.free += ids
        for block in ids:
            if block not in self.small and block not in self.main:
                self.hits[block] = 0
                back = self.key_of(block) in self.ghosts[-(self.num_blocks - self.limit) :]
                (self.main if back else self.small).append(block)
                if back:
                    self.ghosts[self.ghosts.index(self.key_of(block))] = (-1, -1)

    def hit(self, ids: list[int]) -> None:
        super().hit(ids)
        for block in ids:
            self.hits[block] = min(self.hits[block] + 1, 3)

    def choose(self) -> int:
        while True:
            free_in_main = any(b in self.free for b in self.main)
            if len(self.small) > self.limit or not free_in_main:
                block = self.small.pop(0)
                if block in self.free and not self.hits[block]:
                    if self.key_of(block) in self.ghosts:
                        self.ghosts[self.ghosts.index(self.key_of(block))] = (-1, -1)
                    self.ghosts.append(self.key_of(block))
                    return block
                self.hits[block] = 0
                self.main.append(block)
            else:
                block = self.main.pop(0)
                if block in self.free and not self.hits[block]:
                    return block
                self.hits[block] = max(self.hits[block] - 1, 0)
                self.main.append(block)


class ARCOracle(Oracle):
    def __init__(self, num_blocks: int, key_of: Callable[[int], tuple[int, int]]) -> None:
        super().__init__(num_blocks, key_of)
        self.target = 0
        self.kind: dict[int, str] = {}
        self.ghosts: dict[str, list[tuple[int, int]]] = {"new": [], "hit": []}

    def append(self, ids: list[int], request: object, is_end: bool) -> None:
        change = 0
        for block in ids:
            if block not in self.kind:
                key = self.key_of(block)
                back = [k for k, ghosts in self.ghosts.items() if key in ghosts[-self.num_blocks :]]
                change += ("new" in back) - ("hit" in back)
                for ghosts in self.ghosts.values():
                    if key in ghosts:
                        ghosts[ghosts.index(key)] = (-1, -1)
                self.kind[block] = "hit" if back else "new"
        self.target = min(max(self.target + change, 0), self.num_blocks)
        self.free += ids

    def hit(self, ids: list[int]) -> None:
        super().hit(ids)
        self.kind.update(dict.fromkeys(ids, "hit"))

    def choose(self) -> int:
        new = [b for b in self.free if self.kind[b] == "new"]
        hit = [b for b in self.free if self.kind[b] == "hit"]
        kind, block = ("new", new[0]) if len(new) > self.target or not hit else ("hit", hit[0])
        key, ghosts = self.key_of(block), self.ghosts[kind]
        if key in ghosts:
            ghosts[ghosts.index(key)] = (-1, -1)
        ghosts.append(key)
        del self.kind[block]
        return block
