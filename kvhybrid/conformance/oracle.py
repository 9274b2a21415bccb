"""Finds the longest hit by brute force, from the live sets and the content of the pools."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any

from kvhybrid.cache.config import KVCacheConfig
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request
from kvhybrid.conformance.pool_keys import found_in, pool_of
from kvhybrid.conformance.violation import Violation

CHECK = "hits"


@dataclass(frozen=True)
class Oracle:
    """Brute-force look-up of one request's prefix in a cache."""

    config: KVCacheConfig
    keyed: Callable[[int, int], int]
    """(group, prefix length in tokens) to the block found under it, 0 for none."""
    sub_block: bool
    """Whether hits may end inside a block, at any prefix key."""

    @classmethod
    def of(cls, manager: KVCacheManager, request: Request) -> Oracle:
        numbers, unit = manager.coordinator.numbers(request).tolist(), manager.config.hash_unit

        def keyed(g: int, tokens: int) -> int:
            at, rest = divmod(tokens, unit)
            return found_in(pool_of(manager, g), g, numbers[at - 1]) if not rest and 0 < at <= len(numbers) else 0

        return cls(manager.config, keyed, manager.coordinator.sub_block_hits)

    @property
    def alignment(self) -> int:
        """The number of tokens that hits are multiples of."""
        return self.config.hash_unit if self.sub_block else lcm(*self.config.block_sizes)

    def cacheable(self) -> Iterator[int]:
        return (g for g, group in enumerate(self.config.groups) if group.spec.cacheable)

    def joint_hit(self, limit: int) -> int:
        """The longest length up to ``limit`` from which every group can resume."""
        return self.longest(list(self.cacheable()), limit)

    def longest(self, groups: Sequence[int], limit: int) -> int:
        """Like `joint_hit`, for some of the groups."""
        for p in range(limit // self.alignment * self.alignment, 0, -self.alignment):
            if all(self.resumes(g, p, limit) for g in groups):
                return p
        return 0

    def resumes(self, g: int, p: int, limit: int) -> bool:
        """Whether cached blocks cover ``live(p)`` and, for a draft model, the margin above ``p``."""
        spec, size, margin = self.config.groups[g].spec, self._size(g), self._margin(g)
        if spec.state:
            return bool(self.keyed(g, p))
        ends: dict[int, int] = {}
        for part in (*spec.live(p), range(p, p + margin)):
            for j in range(part.start // size, -(-part.stop // size)) if len(part) else ():
                ends[j] = max(ends.get(j, 0), min(part.stop, (j + 1) * size))
        return all(self._covers(g, j, end, limit + margin) for j, end in ends.items())

    def reads_any(self, g: int, p: int) -> bool:
        """Whether ``live(p)`` has a token."""
        return any(len(part) for part in self.config.groups[g].spec.live(p))

    def blocks(self, g: int, p: int) -> list[int]:
        """The entries of a hit of ``p`` tokens whose blocks end at or below ``p``, null entries included."""
        size = self._size(g)
        live = {j for blocks in self.config.groups[g].spec.live_blocks(p, size) for j in blocks}
        return [self.keyed(g, (j + 1) * size) if j in live else 0 for j in range(p // size)]

    def _size(self, g: int) -> int:
        return self.config.block_sizes[g]

    def _alike(self, g: int) -> Sequence[int]:
        """The groups in lockstep with ``g``."""
        return next(members for members in self.config.lockstep() if g in members)

    def _margin(self, g: int) -> int:
        spec = self.config.groups[g].spec
        if spec.state or not any(self.config.groups[h].draft for h in self._alike(g)):
            return 0
        return self.config.hash_unit if self.sub_block and spec.sub_block else self._size(g)

    def _covers(self, g: int, j: int, end: int, limit: int) -> bool:
        """Whether one key finds, in all groups in lockstep, a block ``j`` with the tokens up to ``end``."""
        spec, unit = self.config.groups[g].spec, self.config.hash_unit
        whole = (j + 1) * self._size(g)
        keys = [whole] if whole <= limit or not self.sub_block else []
        if self.sub_block and spec.sub_block:
            keys.extend(range(-(-end // unit) * unit, min(whole - 1, limit) + 1, unit))
        return any(all(self.keyed(h, key) for h in self._alike(g)) for key in keys)


def check_hit(manager: KVCacheManager, request: Request, answer: Mapping[str, Any]) -> None:
    """Compare the answer of a look-up, in a scenario's format, with brute force.

    Raises:
        Violation: The hit is not the longest, its blocks are not those in the pools, or the junction is not beyond
            it.
    """
    oracle, name = Oracle.of(manager, request), f"request {request.request_id!r}"
    readable = manager.enable_caching and not request.skip_reading_prefix_cache
    right, found = oracle.joint_hit(request.num_tokens - 1) if readable else 0, answer["hit_tokens"]
    if found != right:
        text = f"{name}: a hit of {found} tokens, but by brute force {right}"
        raise Violation(CHECK, text, {"hit_tokens": right})
    if answer["junction"] and answer["junction"] <= right:
        raise Violation(CHECK, f"{name}: a junction at {answer['junction']}, within the hit of {right} tokens")
    for g in oracle.cacheable() if right else ():
        _check_blocks(oracle, g, right, list(answer["hit_blocks"]), name)


def _check_blocks(oracle: Oracle, g: int, p: int, rows: list[list[int]], name: str) -> None:
    row, size, whole = rows[g], oracle.config.block_sizes[g], oracle.blocks(g, p)
    if row[: p // size] != whole or len(row) != -(-p // size):
        raise Violation(
            CHECK,
            f"{name}: a hit of {p} tokens with blocks {row} in group {g}, but the pool holds {whole}",
            {"hit_blocks": [*rows[:g], whole + row[p // size : -(-p // size)], *rows[g + 1 :]]},
        )
