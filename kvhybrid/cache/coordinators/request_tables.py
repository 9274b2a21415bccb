"""What one request holds."""

from __future__ import annotations

from collections.abc import Sequence

from kvhybrid.cache.request import Request
from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.managers.prefix.index import PrefixPath
from kvhybrid.managers.table import BlockTable


class RequestTables:
    """The block tables of one request, one per manager, and the numbers of its prefix."""

    def __init__(self, owner: Request, managers: Sequence[SingleTypeKVCacheManager], path: PrefixPath) -> None:
        self.owner = owner
        self.tables = [BlockTable(len(manager.groups)) for manager in managers]
        self.pairs = tuple(zip(managers, self.tables, strict=True))
        """Every table with its manager."""
        self.path = path
        self.units_noted = 0
        """Prefix units that the ledger of misses knows to be computed."""
        self.keys_from = 0
        """No block can get a key before the sequence has this many tokens: keys end on whole units."""
        self.step_end = 0
        """Tokens that have entries after the last step, look-ahead not counted."""
        self.no_work_until = -1
        """Decode steps that end at or below this many tokens neither free, need nor key a block."""
