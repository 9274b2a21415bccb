"""The contract of this folder: one manager per spec, and the generic one that follows the live set alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from mypy_extensions import mypyc_attr

from kvhybrid.managers.arrays import Entries, IntArray, columns
from kvhybrid.managers.pool.block_pool import BlockPool
from kvhybrid.managers.residency import Residency
from kvhybrid.managers.retention.base import RetainedRequest, Retention
from kvhybrid.managers.search import LiveSetSearch
from kvhybrid.managers.table import BlockTable
from kvhybrid.specs import KVCacheSpec


@dataclass(frozen=True)
class GroupRules:
    """What a manager is told about its groups and about the cache that they are part of."""

    groups: tuple[int, ...]
    """Indices of the groups, all of one spec."""
    block_size: int
    """Tokens that a block covers over all ranks."""
    hash_unit: int
    """Tokens per prefix number."""
    alignment: int
    """Hits end on multiples of this many tokens."""
    sub_block_hits: bool
    """Hits may end inside a block; ``alignment`` is then the hash unit."""
    drops: bool
    """A draft model recomputes the last unit of a hit in these groups, so that unit must be cached too."""
    retention: Retention


class Growth:
    """The table entries that a step must fill; pure arithmetic, nothing is taken yet."""

    __slots__ = ("copies", "fresh", "length", "loaded", "loaded_length")

    def __init__(self, loaded: Entries, loaded_length: int, fresh: Entries, length: int, copies: int) -> None:
        self.loaded = loaded
        """Entries for tokens that come from outside."""
        self.loaded_length = loaded_length
        """Length of the table once those are there."""
        self.fresh = fresh
        """Entries for the tokens that the step computes, and its look-ahead."""
        self.length = length
        """Length of the table after the step."""
        self.copies = copies
        """Blocks for a private copy of a partly filled block: 0 or 1."""

    @property
    def blocks(self) -> int:
        """Blocks that each group must take."""
        return len(self.loaded) + len(self.fresh) + self.copies


NO_ENTRIES: Final = range(0)


def _from(start: int, entries: Entries) -> Entries:
    """Those of ``entries`` that are at least ``start``."""
    if isinstance(entries, range):
        return range(max(start, entries.start), max(start, entries.stop))
    return entries[entries >= start]


@mypyc_attr(allow_interpreted_subclasses=True)
class SingleTypeKVCacheManager:
    """Keeps the tables of the groups of one spec, which have the same entries and go in lockstep.

    This class asks the spec's live set for everything and fits any spec. A subclass is a faster search or a
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
        """Per group, (source, target) of page copies that have not run yet; both ends are held for them."""
        self._copies_marked = 0
        self.written_from: dict[int, int] = {}
        """Blocks keyed by the current step, and the first token whose content in them exists only after it."""
        self.keeps_all = self._keeps_all()

    def _margin(self) -> int:
        if not self.rules.drops or self.spec.state:
            return 0
        return self.granularity

    # ---- look-up

    def search(self, path: IntArray) -> LiveSetSearch:
        """A search over the prefix whose numbers are ``path``."""
        return self._search(path, self.rules.alignment, self.margin)

    def loose_search(self, path: IntArray, alignment: int) -> LiveSetSearch:
        """As `search`, for hits that end on any multiple of ``alignment`` and leave nothing to a draft model."""
        return self._search(path, alignment, 0)

    def _search(self, path: IntArray, alignment: int, margin: int) -> LiveSetSearch:
        residency = Residency(self.pool, self.group_ids, path, self.units_per_block)
        return self.search_class(self.spec, residency, self.block_size, alignment, margin)

    @property
    def granularity(self) -> int:
        """Tokens between two lengths at which these groups alone could end a hit."""
        fine = self.rules.sub_block_hits and self.spec.sub_block
        return self.rules.hash_unit if fine else self.block_size

    def lacking(self, path: IntArray, search: LiveSetSearch, start: int, end: int) -> np.ndarray:
        """For each length in ``(start, end]`` that a hit could have, the unit of ``path`` whose key it lacked.

        ``search`` is a loose search that found nothing beyond ``start``.
        """
        step = self.granularity
        holes = [search.highest_missing(p) for p in range(start + step, end + 1, step)]
        return (np.array(holes, np.int64) + 1) * self.units_per_block - 1

    def live_part(self, hit: IntArray, num_tokens: int) -> IntArray:
        """``hit`` without the entries that nothing reads from ``num_tokens`` on."""
        live = np.zeros(hit.shape[1], bool)
        for entries in self.spec.live_blocks(num_tokens, self.block_size):
            live[entries.start : entries.stop] = True
        return np.where(live, hit, 0)

    def is_stale(self, hit: IntArray, path: IntArray) -> bool:
        """Whether a block of ``hit`` has been reused since the look-up: it stands for no prefix on ``path``."""
        entries, per_block = hit.shape[1], self.units_per_block
        if not entries:
            return False
        expected = path if per_block == 1 else path[per_block - 1 : entries * per_block : per_block]
        if len(expected) < entries:  # the last entry is partly filled
            expected = np.append(expected, path[-1])
        if self.pool.arrays.stand_for(hit, expected):
            return False
        blocks = hit[:, hit[0] > 0]
        expected = expected[:entries][hit[0] > 0]
        other = blocks[self.pool.keys.number_of[blocks] != expected]
        known = set(path.tolist())
        return any(known.isdisjoint(self.pool.keys.of(block)) for block in other.tolist())

    def is_too_fresh(self, hit: IntArray, num_tokens: int) -> bool:
        """Whether adopting ``hit`` would read, before the step's forward pass, what only that pass writes.

        That is a state, or any block of which the request needs a copy because the hit ends inside it.
        """
        if not self.written_from or not (self.spec.state or num_tokens % self.block_size):
            return False
        return any(self.written_from.get(b, num_tokens) < num_tokens for b in hit[:, -1:].ravel().tolist())

    # ---- counting

    def has_room(self, table: BlockTable, slots: int) -> bool:
        """Whether a step up to ``slots`` tokens needs no block, once the request is admitted."""
        return slots <= table.length * self.block_size and table.tail_to_copy < 0

    def growth(self, table: BlockTable, adopted: int, total: int, main: int, slots: int, loads: bool) -> Growth:
        """What a step needs that ends at ``main`` tokens and wants ``slots``.

        ``adopted`` is the number of entries of a hit about to be adopted, ``total`` the tokens there before the
        step, of which some come from outside if ``loads``.
        """
        size = self.block_size
        length = table.length or adopted
        loaded: Entries = NO_ENTRIES
        if loads:
            wanted = self._entries(total)
            if total % size and not self.spec.state:
                wanted = np.union1d(wanted, [total // size]).astype(np.int32)
            loaded = _from(length, wanted)
            length = max(length, -(-total // size))
        fresh: Entries
        if self.spec.state:
            end = max(length, -(-main // size))
            fresh = _from(length, self._entries(main))
        else:
            end = max(length, -(-slots // size))
            fresh = range(length, end)
        return Growth(loaded, length, fresh, end, int(table.tail_to_copy >= 0))

    def most_blocks(self, table: BlockTable, adopted: int, total: int, main: int, full: int, cap: int) -> int:
        """Blocks per group that the request may need from the pool until all its ``full`` tokens are computed.

        ``cap`` is the most that it ever holds at once; the step in hand ends at ``main``.
        """
        size = self.block_size
        dead = -(-total // size) - self._num_live(total)
        entries = -(-full // size) - max(table.length or adopted, dead)
        if self.spec.state:
            return min(max(entries, 0), 1) + int(-(-full // size) > -(-main // size))
        return max(0, min(entries, cap))

    def _entries(self, p: int) -> Entries:
        parts = list(self.spec.live_blocks(p, self.block_size))
        if len(parts) < 2:
            return parts[0] if parts else NO_ENTRIES
        return np.concatenate([np.arange(part.start, part.stop, dtype=np.int32) for part in parts])

    def _num_live(self, p: int) -> int:
        return sum(len(entries) for entries in self.spec.live_blocks(p, self.block_size))

    # ---- the life of a table

    def adopt(self, table: BlockTable, hit: IntArray, hit_tokens: int) -> None:
        """Make ``hit`` the table's entries and hold its blocks."""
        table.resize(hit.shape[1])
        table.ids[:, : hit.shape[1]] = hit
        table.keyed = hit_tokens // self.block_size
        self.pool.hold(hit)

    def extend(
        self, table: BlockTable, rows: slice, growth: Growth, loaded: IntArray, fresh: IntArray, hit_tokens: int
    ) -> IntArray:
        """Fill the entries of the groups in ``rows`` with blocks that the pool has given, a row for each group.

        ``fresh`` starts with the block for a private copy where one is due. Returns, per group, the entries that
        this call added for the step's tokens; the copy comes first where it took the place of an adopted block.
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
        else:
            table.ids[rows, columns(growth.fresh)] = fresh
        return added if replaced is None else np.concatenate((replaced[:, None], added), axis=1)

    def _make_private(self, table: BlockTable, rows: slice, copies: IntArray, hit_tokens: int) -> IntArray | None:
        """Let the request write without touching blocks that others read: copy-on-write.

        A request that starts inside a shared block gets the copy, and the copies are returned. One that is about
        to overwrite a state that it has keyed keeps its block: the keys move to the copy.
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
        """Note how many copies are pending, to go back to when a step fails."""
        self._copies_marked = len(self.pending_copies[0])

    def drop_copies(self) -> None:
        """Forget the copies that are pending since the last mark."""
        for copies in self.pending_copies:
            del copies[self._copies_marked :]

    def settle(self, table: BlockTable, total: int, main: int) -> None:
        """All groups are extended: the step goes from ``total`` tokens to ``main``."""
        table.tail_to_copy = -1
        table.ends = (total, main)

    def dead(self, table: BlockTable, num_tokens: int) -> list[tuple[int, int]]:
        """Spans of entries that no token from ``num_tokens`` on reads, the highest first."""
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

    def quiet_until(self, table: BlockTable, keyed: int, main: int) -> int:
        """The longest sequence that a decode step can end at without freeing, needing or keying a block here.

        ``keyed`` tokens have had the chance of a key, ``main`` are computed; less than ``main`` means none.
        """
        limit = self._next_need(table, keyed)
        dead = self._dead_spans(table, limit)
        return -1 if any(table.ids[0, start:end].any() for start, end in dead) else limit

    def _next_need(self, table: BlockTable, keyed: int) -> int:
        """The last length before a block must be taken or could be keyed."""
        if table.tail_to_copy >= 0:
            return -1
        return min(table.length * self.block_size, (keyed // self.block_size + 1) * self.block_size - 1)

    def drop(self, table: BlockTable, rows: slice, spans: Sequence[tuple[int, int]]) -> None:
        """Give the blocks of ``spans`` back, the tail first, and leave null entries."""
        for start, end in spans:
            self.pool.release(table.ids[rows, start:end][:, ::-1])
            table.ids[rows, start:end] = 0

    def release(self, table: BlockTable, rows: slice) -> None:
        """Give back what the groups in ``rows`` hold, the tail first, so that it is reused before the head."""
        self.pool.release(table.ids[rows, table.dropped : table.length][:, ::-1])

    # ---- keys

    def register(self, table: BlockTable, path: IntArray, num_tokens: int, request: RetainedRequest) -> None:
        """Key the blocks that are full at ``num_tokens``, as far as ``path`` goes and retention wants them."""
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
        """The entries in ``[start, full)`` that hold what a key would promise: a state does where a step ended."""
        entries = np.arange(start, full, dtype=np.int32)
        entries = entries[table.ids[0, start:full] > 0]
        if self.spec.state:
            entries = entries[np.isin((entries + 1) * self.block_size, table.ends)]
        return entries

    def _key_blocks(self, table: BlockTable, ids: IntArray, numbers: IntArray) -> None:
        """Key ``ids``, some columns of ``table``, under ``numbers``; null entries are left out."""
        if self.spec.state:
            self.pool.keys.drop(ids.ravel())
        self.pool.keys.register_rows(self.group_ids, ids, numbers)
        if self.spec.state or self.rules.sub_block_hits:
            first = 0 if self.spec.state else table.ends[0]
            self.written_from.update(dict.fromkeys(ids[ids > 0].tolist(), first))

    def _worth_keeping(self, entries: IntArray, request: RetainedRequest) -> np.ndarray:
        """Which of ``entries`` some position that retention keeps would read."""
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
        """Whether retention wants every block of these groups, whatever the request."""
        retention, spec = self.rules.retention, self.spec
        if not spec.retained or (retention.dense and spec.state):
            return True
        step = self.rules.alignment if retention.interval is None else retention.interval
        if not step:
            return False
        far = 64 * step
        wanted = {j for p in (far, far + step) for span in self._read_at(p) for j in span}
        size = self.block_size
        return wanted.issuperset(range((far + self.margin) // size, (far + step + self.margin) // size))
