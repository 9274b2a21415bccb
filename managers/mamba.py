"""Recurrent states: a request holds the state that its step starts from and the one that it ends on."""

from __future__ import annotations

import numpy as np
from mypy_extensions import mypyc_attr

from kvhybrid.managers.arrays import IntArray
from kvhybrid.managers.cached_prefix import CachedPrefix
from kvhybrid.managers.retention.base import RetainedRequest
from kvhybrid.managers.search import LiveSetSearch
from kvhybrid.managers.suffix import SuffixManager
from kvhybrid.managers.table import BlockTable
from kvhybrid.specs import MambaSpec


@mypyc_attr(allow_interpreted_subclasses=True)
class StateSearch(LiveSetSearch):
    """A hit needs one block, the state at its end. The search starts from the right."""

    def __init__(self, manager: MambaManager, path: IntArray, alignment: int) -> None:
        self.unit = manager.granularity
        stride = self.unit // manager.rules.hash_unit
        cached = CachedPrefix(manager.pool, manager.group_ids, path, stride)
        super().__init__(manager.spec, cached, manager.block_size, alignment, 0)
        self.step = max(alignment // self.unit, 1)

    def at_most(self, limit: int) -> int:
        end = min(limit // self.unit, self.cached.num_entries)
        return (self.cached.last_present(end, self.step) + 1) * self.unit

    def blocks(self, p: int) -> IntArray:
        table = np.zeros((self.cached.num_groups, -(-p // self.block_size)), np.int32)
        if p:
            at = p // self.unit
            table[:, -1:] = self.cached.blocks(at - 1, at)
        return table


@mypyc_attr(allow_interpreted_subclasses=True)
class MambaManager(SuffixManager):
    """Groups of recurrent states. A state can be keyed only where a step ended on it."""

    spec: MambaSpec

    def _search(self, path: IntArray, alignment: int, margin: int) -> LiveSetSearch:
        return StateSearch(self, path, alignment)

    def register(self, table: BlockTable, path: IntArray, num_tokens: int, request: RetainedRequest) -> None:
        full = min(num_tokens // self.block_size, len(path) // self.units_per_block)
        if full > table.keyed:
            start, table.keyed = table.keyed, full
            kept = False
            for entry in self._ends(table, start, full):
                if self.keeps_all or self._worth_keeping(np.array([entry]), request)[0]:
                    kept, unit = True, (entry + 1) * self.units_per_block - 1
                    self._key_blocks(table, table.ids[:, entry : entry + 1], path[unit : unit + 1])
            if kept and self.rules.retention.thins:
                self._thin(path, full, request)
        if self.rules.sub_block_hits:
            self._register_tail(table, path, num_tokens, request)

    def _thin(self, path: IntArray, full: int, request: RetainedRequest) -> None:
        """Give up the states on ``path`` that retention finds no longer worth keeping."""
        per_block, keys = self.units_per_block, self.pool.keys
        numbers = path[per_block - 1 : full * per_block : per_block]
        kept = np.flatnonzero((keys.index[self.group_ids[:, None], numbers] > 0).all(axis=0))
        positions = ((kept + 1) * self.block_size).astype(np.int32)
        for position in self.rules.retention.surplus(request, positions).tolist():
            number = int(numbers[position // self.block_size - 1])
            for group in self.groups:
                self.pool.discard(np.array(keys.blocks(group, number), np.int32))

    @property
    def granularity(self) -> int:
        return self.rules.hash_unit if self.rules.sub_block_hits and self.spec.sub_block else self.block_size

    def _ends(self, table: BlockTable, start: int, full: int) -> list[int]:
        """The entries in ``[start, full)`` at whose end the last step began or ended, if they hold a state."""
        size, (began, ended) = self.block_size, table.ends
        ends = [end // size - 1 for end in ((began, ended) if began != ended else (ended,)) if end % size == 0]
        return [j for j in ends if start <= j < full and table.ids[0, j]]

    def _alive_until(self, table: BlockTable, tokens_after: int) -> int:
        return (table.dropped + 1) * self.block_size

    def tail_position(self, request: RetainedRequest) -> int:
        tail = self._last_unit(request) * self.rules.hash_unit
        return tail if self.rules.sub_block_hits and tail % self.block_size else -1

    def _last_unit(self, request: RetainedRequest) -> int:
        """The prompt's last whole unit from which a request with the same prompt can resume."""
        unit, num_tokens = self.rules.hash_unit, request.num_prompt_tokens
        return num_tokens // unit - 1 if self.rules.retention.draft else (num_tokens - 1) // unit

    def _register_tail(self, table: BlockTable, path: IntArray, num_tokens: int, request: RetainedRequest) -> None:
        """Key the state at the prompt's last whole unit, if a step ended there; a copy keeps it."""
        unit, usable = self.rules.hash_unit, self._last_unit(request)
        if num_tokens != usable * unit or not 0 < usable <= len(path) or table.ends[1] != num_tokens:
            return
        entry = (num_tokens - 1) // self.block_size
        if not table.ids[0, entry] or self.pool.keys.number_of[table.ids[0, entry]] == path[usable - 1]:
            return
        self._key_blocks(table, table.ids[:, entry : entry + 1], path[usable - 1 : usable])
        if num_tokens % self.block_size:
            table.tail_to_copy = entry
            table.keyed = entry
