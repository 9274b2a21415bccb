"""The contract of this folder: one manager per spec, and the generic one that follows the live set alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from mypy_extensions import mypyc_attr

from kvhybrid.managers.arrays import Entries, IntArray, columns
from kvhybrid.managers.cached_prefix import CachedPrefix
from kvhybrid.managers.growth import NO_ENTRIES, Growth
from kvhybrid.managers.pool.block_pool import BlockPool
from kvhybrid.managers.retention.base import RetainedRequest
from kvhybrid.managers.rules import GroupRules
from kvhybrid.managers.search import LiveSetSearch
from kvhybrid.managers.table import BlockTable
from kvhybrid.specs import KVCacheSpec


def _entries_from(start: int, entries: Entries) -> Entries:
    """Those of ``entries`` that are at least ``start``."""
    if isinstance(entries, range):
        return range(max(start, entries.start), max(start, entries.stop))
    return entries[entries >= start]


@mypyc_attr(allow_interpreted_subclasses=True)
class SingleTypeKVCacheManager:
    """Keeps the tables of the groups of one spec, which stay in lockstep: their entries are at the same places.

    This class derives everything from the spec's live set and fits any spec. A subclass is a faster search or a
    special storage and never a change of meaning: this class is its oracle in the tests.
    """

    search_class: ClassVar[type[LiveSetSearch]] = LiveSetSearch

    def __init__(self, spec: KVCacheSpec, pool: BlockPool, rules: GroupRules) -> None:
        self.spec = spec
        self.pool = pool
        self.rules = rules
        self.groups = rules.groups
        self.group_ids = np.array(rules.groups, np.int32)
        self.block_size = rules.block_size
        self.units_per_block = rules.block_size // rules.hash_unit if spec.cacheable else 1
        self.margin = self._margin()
        self.pending_copies: list[list[tuple[int, int]]] = [[] for _ in self.groups]
        """Per group, (source, target) of page copies that have not run yet; they hold both blocks."""
        self._copies_marked = 0
        self.written_from: dict[int, int] = {}
        """Blocks that the current step has keyed; for each, the first token that only its forward pass writes."""
        self.keeps_all = self._keeps_all()

    def _margin(self) -> int:
        if not self.rules.drops or self.spec.state:
            return 0
        return self.granularity

    # ---- look-up

    def search(self, path: IntArray) -> LiveSetSearch:
        """A search for hits on the prefix whose numbers are ``path``."""
        return self._search(path, self.rules.alignment, self.margin)

    def loose_search(self, path: IntArray, alignment: int) -> LiveSetSearch:
        """As `search`, for hits that end on any multiple of ``alignment`` tokens and need no margin."""
        return self._search(path, alignment, 0)

    def _search(self, path: IntArray, alignment: int, margin: int) -> LiveSetSearch:
        cached = CachedPrefix(self.pool, self.group_ids, path, self.units_per_block)
        return self.search_class(self.spec, cached, self.block_size, alignment, margin)

    @property
    def granularity(self) -> int:
        """Tokens between two neighbouring lengths at which a hit of these groups alone can end."""
        fine = self.rules.sub_block_hits and self.spec.sub_block and not self.spec.state
        return self.rules.hash_unit if fine else self.block_size

    def lacking(self, path: IntArray, search: LiveSetSearch, start: int, end: int) -> np.ndarray:
        """For each length in ``(start, end]`` that a hit could have, the unit of ``path`` whose key is missing.

        Args:
            path: The prefix numbers of a request.
            search: A loose search on ``path`` that found nothing beyond ``start``.
            start: Tokens, a multiple of the granularity, as ``end``.
        """
        step = self.granularity
        positions = np.arange(start + step, end + 1, step)
        holes = np.array([search.highest_missing(p) for p in positions.tolist()], np.int64)
        units = (holes + 1) * self.units_per_block - 1
        # A block that the request does not fill can only be keyed at the length itself.
        return np.where(units < len(path), units, positions // self.rules.hash_unit - 1)

    def live_part(self, hit: IntArray, num_tokens: int) -> IntArray:
        """``hit`` without the entries that nothing reads from ``num_tokens`` on."""
        live = np.zeros(hit.shape[1], bool)
        for entries in self.spec.live_blocks(num_tokens, self.block_size):
            live[entries.start : entries.stop] = True
        return np.where(live, hit, 0)

    def is_stale(self, hit: IntArray, num_tokens: int, path: IntArray) -> bool:
        """Whether a block of ``hit``, of ``num_tokens``, was reused since the look-up.

        A block serves a hit only under the key of its place and of its group.
        """
        entries, per_block = hit.shape[1], self.units_per_block
        if not entries:
            return False
        expected = path if per_block == 1 else path[per_block - 1 : num_tokens // self.rules.hash_unit : per_block]
        if num_tokens % self.block_size:
            units = num_tokens // self.rules.hash_unit
            expected = np.append(expected, path[units - 1 : units])
        if len(expected) < entries:
            return True
        if self.pool.arrays.are_keyed_under(self.group_ids, hit, expected):
            return False
        expected = expected[:entries]
        other = (self.pool.keys.number_of[hit] != expected) | (self.pool.group_of[hit] != self.group_ids[:, None])
        columns = np.flatnonzero((other & (hit > 0)).any(axis=0))
        return any(self._is_stale_at(hit, j, num_tokens, path) for j in columns.tolist())

    def _is_stale_at(self, hit: IntArray, entry: int, num_tokens: int, path: IntArray) -> bool:
        """`is_stale` for one entry of ``hit``."""
        end, units = (entry + 1) * self.units_per_block, num_tokens // self.rules.hash_unit
        # The entry in which a hit ends may have the key of more of its tokens, unless it is a state.
        numbers = path[end - 1 : end] if end <= units else path[units - 1 : units if self.spec.state else end]
        chosen, keys = numbers.tolist(), self.pool.keys
        return any(
            self.pool.group_of[block] != group or not any(number in chosen for number in keys.of(block))
            for group, block in zip(self.groups, hit[:, entry].tolist(), strict=True)
            if block
        )

    def is_too_fresh(self, hit: IntArray, num_tokens: int) -> bool:
        """Whether adopting ``hit``, of ``num_tokens``, would read what only this step's forward pass writes.

        That happens to states, and to a block that must be copied because the hit ends inside it: both are read
        before the forward pass.
        """
        if not self.written_from or not (self.spec.state or num_tokens % self.block_size):
            return False
        return any(self.written_from.get(b, num_tokens) < num_tokens for b in hit[:, -1:].ravel().tolist())

    # ---- counting

    def has_room(self, table: BlockTable, slots: int) -> bool:
        """Whether a running request needs no block for a step with slots for ``slots`` tokens."""
        return slots <= table.length * self.block_size and table.tail_to_copy < 0

    def can_go_back(self, table: BlockTable, tokens_before: int, tokens_after: int) -> bool:
        """Whether ``table`` still has what a step reads and the entries that it writes, if it starts below the end
        of the last one.

        The state that the last step started from is still there if that step ended in another block.
        """
        size, length = self.block_size, table.length
        read = [*self.spec.live_blocks(tokens_before, size)]
        if self.spec.state:
            began, ended = table.ends
            if read and (tokens_before != began or (began - 1) // size == (ended - 1) // size):
                return False
            written = [*self.spec.live_blocks(tokens_after, size)]
        else:
            written = [range(tokens_before // size, -(-tokens_after // size))]
        return all(table.ids[:, part.start : min(part.stop, length)].all() for part in (*read, *written))

    def growth(
        self, table: BlockTable, adopted: int, tokens_before: int, tokens_after: int, slots: int, loads: bool
    ) -> Growth:
        """The entries that a step must fill. Changes nothing.

        Args:
            adopted: Entries of the hit that an admission adopts, not in ``table`` yet.
            tokens_before: Tokens before the step: computed, adopted and loaded from outside.
            tokens_after: Tokens after the step.
            slots: Tokens that need a slot: ``tokens_after`` and the look-ahead.
            loads: Whether some of ``tokens_before`` are loaded from outside into slots that this step allocates.
        """
        size = self.block_size
        length = table.length or adopted
        loaded: Entries = NO_ENTRIES
        if loads:
            wanted = self._entries(tokens_before)
            if tokens_before % size and not self.spec.state:
                wanted = np.union1d(wanted, [tokens_before // size]).astype(np.int32)
            loaded = _entries_from(length, wanted)
            length = max(length, -(-tokens_before // size))
        fresh: Entries
        if self.spec.state:
            end = max(length, -(-tokens_after // size))
            fresh = _entries_from(length, self._entries(tokens_after))
        else:
            end = max(length, -(-slots // size))
            fresh = range(length, end)
        return Growth(loaded, length, fresh, end, int(table.tail_to_copy >= 0))

    def tail_position(self, request: RetainedRequest) -> int:
        """The position inside a block where a state may get a key, and the next step must copy it; -1 for none."""
        return -1

    def _entries(self, p: int) -> Entries:
        parts = list(self.spec.live_blocks(p, self.block_size))
        if len(parts) < 2:
            return parts[0] if parts else NO_ENTRIES
        return np.concatenate([np.arange(part.start, part.stop, dtype=np.int32) for part in parts])

    # ---- the life of a table

    def adopt(self, table: BlockTable, hit: IntArray, hit_tokens: int) -> None:
        """Make ``hit``, of ``hit_tokens``, the table's entries and hold its blocks."""
        table.resize(hit.shape[1])
        table.ids[:, : hit.shape[1]] = hit
        table.keyed = hit_tokens // self.block_size
        self.pool.adopt(hit)

    def extend(
        self, table: BlockTable, rows: slice, growth: Growth, loaded: IntArray, fresh: IntArray, hit_tokens: int
    ) -> IntArray:
        """Fill the entries of the groups in ``rows`` with blocks that were taken from the pool.

        Args:
            growth: What `growth` has counted for these groups.
            loaded: Blocks for its loaded entries, shaped (rows, entries).
            fresh: Blocks for its fresh entries, with that of a private copy in front if there is one.
            hit_tokens: Tokens of the hit that was adopted.

        Returns:
            The entries added for the step's tokens, shaped (rows, entries), a copy of an adopted block in front.
            Not a view of the table, whose entries change later.
        """
        table.resize(growth.length)
        added = table.ids[rows, growth.loaded_length : growth.length]
        if len(growth.loaded):
            table.ids[rows, columns(growth.loaded)] = loaded
        replaced: IntArray | None = None
        if growth.copies:
            replaced = self._make_private(table, rows, fresh[:, 0], hit_tokens)
            fresh = fresh[:, 1:]
        if len(growth.fresh) == growth.length - growth.loaded_length:
            added[:] = fresh
            if replaced is None and growth.fresh:
                return fresh
        else:
            table.ids[rows, columns(growth.fresh)] = fresh
        return added.copy() if replaced is None else np.concatenate((replaced[:, None], added), axis=1)

    def _make_private(self, table: BlockTable, rows: slice, copies: IntArray, hit_tokens: int) -> IntArray | None:
        """Copy-on-write: let the request write without changing blocks that others read.

        A request that starts inside a shared block gets the copy, and the copies are returned. One that is about
        to overwrite a state that it has keyed keeps its block, and the keys move to the copy.
        """
        reader = table.tail_to_copy < 0
        entry = hit_tokens // self.block_size if reader else table.tail_to_copy
        sources = table.ids[rows, entry].copy()
        if reader:
            table.ids[rows, entry] = copies
        for i, source, target in zip(range(*rows.indices(len(self.groups))), sources, copies, strict=True):
            self.pending_copies[i].append((int(source), int(target)))
            if not reader:
                self.pool.keys.move(int(source), int(target))
                self.written_from[int(target)] = 0
        self.pool.hold(copies if reader else sources)
        return copies if reader else None

    def mark_copies(self) -> None:
        """Note how many copies are pending, for `drop_copies`."""
        self._copies_marked = len(self.pending_copies[0])

    def drop_copies(self) -> None:
        """Drop the copies that became pending since `mark_copies`: the step has failed."""
        for copies in self.pending_copies:
            del copies[self._copies_marked :]

    def settle(self, table: BlockTable, tokens_before: int, tokens_after: int) -> None:
        """Note a step from ``tokens_before`` to ``tokens_after`` tokens. All groups have the blocks for it."""
        table.tail_to_copy = -1
        table.ends = (tokens_before, tokens_after)

    def dead(self, table: BlockTable, num_tokens: int) -> list[tuple[int, int]]:
        """Spans ``[start, end)`` of entries that no token from ``num_tokens`` on reads, the highest first.

        A span may be returned by several calls.
        """
        spans = self._dead_spans(table, num_tokens)
        if spans and spans[0][0] == table.dropped:
            table.dropped = spans[0][1]
        return spans[::-1]

    def _dead_spans(self, table: BlockTable, num_tokens: int) -> list[tuple[int, int]]:
        end = min(num_tokens // self.block_size, table.length)
        spans: list[tuple[int, int]] = []
        start = table.dropped
        for entries in self.spec.live_blocks(num_tokens, self.block_size):
            if start < min(entries.start, end):
                spans.append((start, min(entries.start, end)))
            start = max(start, entries.stop)
        if start < end:
            spans.append((start, end))
        return spans

    def no_work_until(self, table: BlockTable, keyed: int, tokens_after: int) -> int:
        """The length, in tokens, up to which decode steps need not free, take or key a block here.

        Args:
            keyed: Tokens whose full blocks have been keyed or skipped.
            tokens_after: Tokens after this step. An answer below it means that the next step may have work.
        """
        limit = self._next_need(table, keyed)
        dead = self._dead_spans(table, limit)
        return -1 if any(table.ids[0, start:end].any() for start, end in dead) else limit

    def _next_need(self, table: BlockTable, keyed: int) -> int:
        """The last length before a block must be taken or may be keyed."""
        if table.tail_to_copy >= 0:
            return -1
        return min(table.length * self.block_size, (keyed // self.block_size + 1) * self.block_size - 1)

    def drop(self, table: BlockTable, rows: slice, spans: Sequence[tuple[int, int]]) -> None:
        """Release the blocks of ``spans`` of the groups in ``rows``, the tail first, and leave null entries."""
        for start, end in spans:
            self.pool.release(table.ids[rows, start:end][:, ::-1])
            table.ids[rows, start:end] = 0

    def release(self, table: BlockTable, rows: slice) -> None:
        """Release what the groups in ``rows`` hold, the tail first, so that it is reused before the head."""
        self.pool.release(table.ids[rows, table.dropped : table.length][:, ::-1])

    # ---- keys

    def register(self, table: BlockTable, path: IntArray, num_tokens: int, request: RetainedRequest) -> None:
        """Key the blocks that are full at ``num_tokens``, lie on ``path`` and are worth keeping by retention."""
        per_block = self.units_per_block
        full, start = min(num_tokens // self.block_size, len(path) // per_block), table.keyed
        if full <= start:
            return
        table.keyed = full
        if self.keeps_all and not self.spec.state:
            numbers = path[(start + 1) * per_block - 1 : full * per_block : per_block]
            self._key_blocks(table, table.ids[:, start:full], numbers)
            return
        entries = self._keyable(table, start, full)
        if len(entries) and not self.keeps_all:
            entries = entries[self._worth_keeping(entries, request)]
        if len(entries):
            self._key_blocks(table, table.ids[:, entries], path[(entries + 1) * per_block - 1])

    def _keyable(self, table: BlockTable, start: int, full: int) -> IntArray:
        """The entries in ``[start, full)`` with a block to key: for states, those where a step ended."""
        entries = np.arange(start, full, dtype=np.int32)
        entries = entries[table.ids[0, start:full] > 0]
        if self.spec.state:
            entries = entries[np.isin((entries + 1) * self.block_size, table.ends)]
        return entries

    def _key_blocks(self, table: BlockTable, ids: IntArray, numbers: IntArray) -> None:
        """Key ``ids``, columns of ``table``, under ``numbers``; null entries are skipped."""
        if self.spec.state:
            self.pool.keys.drop(ids.ravel())
        self.pool.keys.register_rows(self.group_ids, ids, numbers)
        if self.spec.state or self.rules.sub_block_hits:
            first = 0 if self.spec.state else table.ends[0]
            self.written_from.update(dict.fromkeys(ids[ids > 0].tolist(), first))

    def _worth_keeping(self, entries: IntArray, request: RetainedRequest) -> np.ndarray:
        """Which of ``entries``, as a mask, are read at some position that retention keeps."""
        first, last = int(entries[0]), int(entries[-1]) + 1
        size = self.block_size
        positions = self.rules.retention.positions(
            request, first * size, last * size, self.rules.alignment, self.block_size if self.margin else 0
        )
        wanted = np.zeros(last - first, bool)
        for p in positions:
            for span in self._read_at(p):
                wanted[max(span.start - first, 0) : max(span.stop - first, 0)] = True
        return wanted[entries - first]

    def _read_at(self, p: int) -> list[range]:
        """The entries that a hit of ``p`` tokens needs, its margin included."""
        size = self.block_size
        if self.spec.state:
            p = p // size * size
        spans = list(self.spec.live_blocks(p, size)) if p > 0 else []
        if self.margin and p >= 0:
            spans.append(range(p // size, (p + self.margin - 1) // size + 1))
        return spans

    def _keeps_all(self) -> bool:
        """Whether retention keeps every block of these groups, whatever the request."""
        retention, spec = self.rules.retention, self.spec
        if not spec.retained or (retention.dense and spec.state):
            return True
        step = self.rules.alignment if retention.interval is None else retention.interval
        if not (step and retention.by_interval):
            return False
        far = 64 * step
        wanted = {j for p in (far, far + step) for span in self._read_at(p) for j in span}
        size = self.block_size
        return wanted.issuperset(range((far + self.margin) // size, (far + step + self.margin) // size))
