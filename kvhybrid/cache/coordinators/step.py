"""One call for slots: its token counts, and what a request holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from kvhybrid.cache.request import Request
from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.managers.prefix.index import PrefixPath
from kvhybrid.managers.table import BlockTable


class Step:
    """Token counts of one call for slots."""

    __slots__ = ("encoder", "hit_tokens", "loads", "main", "slots", "total")

    def __init__(self, total: int, main: int, slots: int, hit_tokens: int, loads: bool, encoder: int) -> None:
        self.total: Final = total
        """Tokens that are there before the step: computed, adopted and loaded."""
        self.main: Final = main
        """Tokens after the step."""
        self.slots: Final = slots
        """Tokens that need a slot: ``main`` and the look-ahead, at most the longest request."""
        self.hit_tokens: Final = hit_tokens
        """Tokens of the adopted hit."""
        self.loads: Final = loads
        """Whether this step makes room for tokens that come from outside."""
        self.encoder: Final = encoder
        """Encoder tokens that need a slot, 0 after the admission."""

    def __repr__(self) -> str:
        return (
            f"Step(total={self.total}, main={self.main}, slots={self.slots}, hit_tokens={self.hit_tokens}, "
            f"loads={self.loads}, encoder={self.encoder})"
        )


class Headroom(NamedTuple):
    """Blocks of the shared pool that a call must leave free."""

    watermark: int
    """For requests that run already, when another is admitted beside them."""
    reserved: int
    """For others, by wish of the caller."""
    full_tokens: int
    """Tokens of the whole request, where all of it must fit; 0 where only the step counts."""


class RequestTables:
    """What one request holds: a table per manager, and the numbers of its prefix."""

    def __init__(self, owner: Request, managers: Sequence[SingleTypeKVCacheManager], path: PrefixPath) -> None:
        self.owner = owner
        self.tables = [BlockTable(len(manager.groups)) for manager in managers]
        self.pairs = tuple(zip(managers, self.tables, strict=True))
        """Every table with its manager."""
        self.path = path
        self.units_noted = 0
        """Prefix units of which the ledger of misses knows that they were computed."""
        self.keys_from = 0
        """No block can get a key before the sequence has so many tokens: keys end on whole units."""
        self.quiet_until = -1
        """Decode steps that end at or below this many tokens neither free, need nor key a block."""
