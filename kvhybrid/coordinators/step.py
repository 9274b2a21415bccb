"""One call for slots: its token counts, and what a request holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.managers.prefix_index import PrefixPath
from kvhybrid.managers.table import BlockTable
from kvhybrid.request import Request


class Step(NamedTuple):
    """Token counts of one call for slots."""

    total: int
    """Tokens that are there before the step: computed, adopted and loaded."""
    main: int
    """Tokens after the step."""
    slots: int
    """Tokens that need a slot: ``main`` and the look-ahead, at most the longest request."""
    hit_tokens: int
    """Tokens of the adopted hit."""
    loads: bool
    """Whether this step makes room for tokens that come from outside."""
    encoder: int
    """Encoder tokens that need a slot, 0 after the admission."""


class Headroom(NamedTuple):
    """Blocks of the shared pool that a call must leave free."""

    watermark: int
    """For requests that run already, when another is admitted beside them."""
    reserved: int
    """For others, by wish of the caller."""
    full_tokens: int
    """Tokens of the whole request, where all of it must fit; 0 where only the step counts."""


@dataclass
class RequestTables:
    """What one request holds: a table per manager, and the numbers of its prefix."""

    owner: Request
    tables: list[BlockTable]
    pairs: tuple[tuple[SingleTypeKVCacheManager, BlockTable], ...]
    """Every table with its manager."""
    path: PrefixPath
    units_noted: int = 0
    """Prefix units of which the ledger of misses knows that they were computed."""
    keys_from: int = 0
    """No block can get a key before the sequence has so many tokens: keys end on whole units."""
    quiet_until: int = -1
    """Decode steps that end at or below this many tokens neither free, need nor key a block."""
