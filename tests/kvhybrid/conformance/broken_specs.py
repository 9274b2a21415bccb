"""Specs and managers that break their contract, each in one way; `Window` is what they all started as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.managers.mamba import MambaManager
from kvhybrid.managers.retention.base import RetainedRequest
from kvhybrid.managers.search import LiveSetSearch
from kvhybrid.managers.table import BlockTable
from kvhybrid.specs import AttentionSpec, KVCacheSpec, MambaSpec, PagePart


@dataclass(frozen=True, kw_only=True)
class Window(AttentionSpec):
    """Sound: the latest ``window`` tokens."""

    window: int
    kind: ClassVar[str] = "window"
    retained: ClassVar[bool] = True

    def live(self, p: int) -> tuple[range, ...]:
        return (range(max(0, p - self.window), p),)


# ---- specs


@dataclass(frozen=True, kw_only=True)
class ReadsAhead(Window):
    kind: ClassVar[str] = "reads_ahead"

    def live(self, p: int) -> tuple[range, ...]:
        return (range(max(0, p - self.window), p + 1),)


@dataclass(frozen=True, kw_only=True)
class DilatedWindow(Window):
    """Every other position of the window: what is skipped at p is read again at p + 1."""

    kind: ClassVar[str] = "dilated_window"

    def live(self, p: int) -> tuple[range, ...]:
        return tuple(range(j, j + 1) for j in range(max(0, p - self.window), p) if (p - j) % 2)


@dataclass(frozen=True, kw_only=True)
class OverlappingRanges(Window):
    kind: ClassVar[str] = "overlapping_ranges"

    def live(self, p: int) -> tuple[range, ...]:
        return (range(min(2, p)), range(max(0, p - self.window), p))


@dataclass(frozen=True, kw_only=True)
class SamePage(Window):
    kind: ClassVar[str] = "same_page"

    def page_parts(self) -> tuple[PagePart, ...]:
        return (PagePart("k", (4, 1, 1), self.dtype),)


@dataclass(frozen=True, kw_only=True)
class NoPadding(Window):
    kind: ClassVar[str] = "no_padding"

    @property
    def page_bytes(self) -> int:
        return self.unpadded_page_bytes


@dataclass(frozen=True, kw_only=True)
class SmallBound(Window):
    """Forgets that the window may lie across one block more."""

    kind: ClassVar[str] = "small_bound"

    def admission_blocks(
        self, max_in_flight_tokens: int, max_model_len: int, block_size: int | None = None
    ) -> int:
        size = block_size or self.block_size
        return min(-(-(self.window + max_in_flight_tokens) // size), -(-max_model_len // size))


@dataclass(frozen=True, kw_only=True)
class WrongCycle(Window):
    """Lets go of blocks one token later than it says."""

    kind: ClassVar[str] = "wrong_cycle"

    def release_cycle(self, block_size: int) -> tuple[int, int] | None:
        return block_size, (self.window - 3) % block_size


@dataclass(frozen=True, kw_only=True)
class LargeBound(Window):
    """Not broken: it only asks for more room than any step needs."""

    kind: ClassVar[str] = "large_bound"

    def admission_blocks(
        self, max_in_flight_tokens: int, max_model_len: int, block_size: int | None = None
    ) -> int:
        return -(-max_model_len // (block_size or self.block_size))


@dataclass(frozen=True, kw_only=True)
class EqualByHalf(Window):
    """Groups that differ only in ``window`` would share their tables."""

    kind: ClassVar[str] = "equal_by_half"
    window: int = field(compare=False)


class Undecorated(Window):
    kind: ClassVar[str] = "undecorated"


@dataclass(frozen=True, kw_only=True)
class Unregistered(Window):
    kind: ClassVar[str] = "unregistered"


@dataclass(frozen=True, kw_only=True)
class RaisesLate(Window):
    """Fails on a position that short tests do not reach."""

    kind: ClassVar[str] = "raises_late"

    def live(self, p: int) -> tuple[range, ...]:
        if p == 100:
            raise IndexError("no such position")
        return super().live(p)


@dataclass(frozen=True, kw_only=True)
class State(MambaSpec):
    kind: ClassVar[str] = "own_state"


# ---- managers


class HighestBlockSearch(LiveSetSearch):
    """Looks at the highest block of the live set alone."""

    def highest_missing(self, p: int) -> int:
        size = self.block_size
        return self.cached.last_missing((p - 1) // size, (p + self.margin - 1) // size + 1)


class AcceptsAMissingBlock(SingleTypeKVCacheManager):
    search_class = HighestBlockSearch


class MissesAHit(SingleTypeKVCacheManager):
    """Never finds more than two blocks."""

    def _search(self, path: IntArray, alignment: int, margin: int) -> LiveSetSearch:
        return super()._search(path[: 2 * self.units_per_block], alignment, margin)


class FreesALiveBlock(SingleTypeKVCacheManager):
    """Drops the block that the window is about to leave."""

    def _dead_spans(self, table: BlockTable, num_tokens: int) -> list[tuple[int, int]]:
        return super()._dead_spans(table, num_tokens + self.block_size - 1)


class KeepsTheHead(SingleTypeKVCacheManager):
    """Forgets the first block when a request ends."""

    def release(self, table: BlockTable, *rows: Any) -> None:
        table.dropped = max(table.dropped, 1)
        super().release(table, *rows)


class KeysTooEarly(SingleTypeKVCacheManager):
    """Keys a block whose last tokens are still to come."""

    def register(self, table: BlockTable, path: IntArray, num_tokens: int, request: RetainedRequest) -> None:
        super().register(table, path, num_tokens + 1, request)


class RaisesInExtend(SingleTypeKVCacheManager):
    def extend(self, table: BlockTable, *rest: Any) -> Any:
        added = super().extend(table, *rest)
        if table.length > 2:
            raise RuntimeError("a table of three blocks is too much for me")
        return added


class FreesTwice(SingleTypeKVCacheManager):
    def drop(self, table: BlockTable, rows: Any, spans: Sequence[tuple[int, int]]) -> None:
        gone = table.ids[rows, spans[0][0] : spans[0][1]].ravel().copy()
        super().drop(table, rows, spans)
        self.pool.release(gone[gone > 0])


class AdoptsTooEarly(MambaManager):
    """Starts a request from a state that the current step has yet to write."""

    def is_too_fresh(self, *_: Any) -> bool:
        return False


class CannotBeBuilt(SingleTypeKVCacheManager):
    def __init__(self, spec: KVCacheSpec, *rest: object) -> None:
        raise LookupError("not today")


# ---- what check-spec is given

ONE = Window(block_size=4, window=6)
NOTHING = 42


def two_windows() -> list[KVCacheSpec]:
    return [Window(block_size=4, window=6), Window(block_size=2, window=3)]


def no_specs() -> list[KVCacheSpec]:
    return []


def fails() -> list[KVCacheSpec]:
    raise OSError("no table of specs")


@dataclass(frozen=True, kw_only=True)
class Named(Window):
    label: str


@dataclass(frozen=True, kw_only=True)
class NeverRight(Window):
    def __post_init__(self) -> None:
        raise ValueError("these values do not go together")
