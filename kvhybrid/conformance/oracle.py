"""The longest hit by brute force: every aligned length against the live sets and what the pool really holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request
from kvhybrid.conformance.violation import Violation

CHECK = "hits"


@dataclass(frozen=True)
class Oracle:
    """One look-up of one request."""

    manager: KVCacheManager
    request: Request

    @cached_property
    def _numbers(self) -> list[int]:
        numbers: list[int] = self.manager.coordinator.numbers(self.request).tolist()
        return numbers

    def keyed(self, g: int, tokens: int) -> int:
        """The block that group ``g`` has under the prefix of ``tokens`` tokens, 0 for none."""
        at, rest = divmod(tokens, self.manager.config.hash_unit)
        if rest or not 0 < at <= len(self._numbers):
            return 0
        return int(self.manager.block_pool.keys.index[g, self._numbers[at - 1]])

    def longest(self) -> int:
        """The longest length from which every group can resume."""
        config, coordinator = self.manager.config, self.manager.coordinator
        limit = self.request.num_tokens - 1
        groups = [g for g, group in enumerate(config.groups) if group.spec.cacheable]
        for p in range(limit // coordinator.alignment * coordinator.alignment, 0, -coordinator.alignment):
            if all(self.resumes(g, p, limit) for g in groups):
                return p
        return 0

    def resumes(self, g: int, p: int, limit: int) -> bool:
        """Whether cached blocks cover ``live(p)`` and, for a draft model, the margin above ``p``."""
        config = self.manager.config
        spec, size, margin = config.groups[g].spec, config.block_size_of(config.groups[g].spec), self._margin(g)
        if spec.state:
            return bool(self.keyed(g, p))
        ends: dict[int, int] = {}
        for part in (*spec.live(p), range(p, p + margin)):
            for j in range(part.start // size, -(-part.stop // size)) if len(part) else ():
                ends[j] = max(ends.get(j, 0), min(part.stop, (j + 1) * size))
        return all(self._covers(g, j, end, limit + margin) for j, end in ends.items())

    def _margin(self, g: int) -> int:
        config = self.manager.config
        spec = config.groups[g].spec
        if spec.state or not any(other.draft and other.spec == spec for other in config.groups):
            return 0
        fine = self.manager.coordinator.sub_block_hits and spec.sub_block
        return config.hash_unit if fine else config.block_size_of(spec)

    def _covers(self, g: int, j: int, end: int, limit: int) -> bool:
        """Whether a key leads to a block ``j`` that holds the tokens up to ``end``, in all groups of the spec."""
        config, fine = self.manager.config, self.manager.coordinator.sub_block_hits
        spec, unit = config.groups[g].spec, config.hash_unit
        whole = (j + 1) * config.block_size_of(spec)
        keys = [whole] if whole <= limit or not fine else []
        if fine and spec.sub_block:
            keys.extend(range(-(-end // unit) * unit, min(whole - 1, limit) + 1, unit))
        alike = [h for h, other in enumerate(config.groups) if other.spec == spec]
        return any(all(self.keyed(h, key) for h in alike) for key in keys)


def check_hit(manager: KVCacheManager, request: Request, answer: Mapping[str, Any]) -> None:
    """Compare a look-up's answer, in the words of a scenario, with brute force.

    Raises:
        Violation: The hit is not the longest, or its blocks are not those that the pool holds.
    """
    oracle = Oracle(manager, request)
    readable = manager.enable_caching and not request.skip_reading_prefix_cache
    right, found = oracle.longest() if readable else 0, answer["hit_tokens"]
    if found != right:
        raise Violation(
            CHECK,
            f"request {request.request_id!r}: a hit of {found} tokens, but by brute force {right}",
            {"hit_tokens": right},
        )
    rows = list(answer["hit_blocks"])
    for g, group in enumerate(manager.config.groups):
        if right and group.spec.cacheable:
            _check_blocks(oracle, g, right, rows)


def _check_blocks(oracle: Oracle, g: int, p: int, rows: list[list[int]]) -> None:
    config, row = oracle.manager.config, rows[g]
    spec, size = config.groups[g].spec, config.block_size_of(config.groups[g].spec)
    live = {j for blocks in spec.live_blocks(p, size) for j in blocks}
    whole = [oracle.keyed(g, (j + 1) * size) if j in live else 0 for j in range(p // size)]
    if row[: p // size] != whole or len(row) != -(-p // size):
        raise Violation(
            CHECK,
            f"request {oracle.request.request_id!r}: a hit of {p} tokens with blocks {row} in group {g}, but the "
            f"pool holds {whole}",
            {"hit_blocks": [*rows[:g], whole + row[p // size : -(-p // size)], *rows[g + 1 :]]},
        )
