"""Random traffic on a real cache manager, with what every page holds written down beside it.

`Traffic` is a small scheduler and a small model in one. It knows which token's entry, or which state, every page
holds, so that it can tell whether a request reads what it would have computed itself. Steps work like the
engine's: copies first, then loads, then every layer writes, then every layer reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvhybrid.cache.blocks import ComputedBlocks
from kvhybrid.cache.extra_keys import LoRA
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.scheduling.chunking import PrefillChunking
from tests.kvhybrid.cache.invariants import Snapshot, assert_invariants, assert_only_dead_blocks_left, snapshot
from tests.kvhybrid.cache.oracle import Oracle

Page = dict[int, object]
"""What a block holds: by token offset the prefix that the entry stands for; a state lies at -1."""
MAX_REQUESTS = 5


@dataclass
class Sequence:
    """A request and what it should find in its pages."""

    request: Request
    prefixes: list[int] = field(default_factory=list)
    """For every token a number that stands for all tokens up to it, under the request's salt and adapter."""
    loads_until: int = 0
    drafts: int = 0


@dataclass(frozen=True)
class Scheduled:
    """One sequence's part of the step in hand: tokens ``[total, main)``, after a load of ``[hit, total)``."""

    sequence: Sequence
    hit: int
    total: int
    main: int


class Traffic:
    """Interprets pairs of small numbers as calls. Each call is followed by `assert_invariants`."""

    def __init__(self, manager: KVCacheManager) -> None:
        self.manager = manager
        self.chunking = PrefillChunking(manager.config, manager.coordinator.alignment)
        self.has_states = any(group.spec.state for group in manager.config.groups)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.loading: list[Sequence] = []
        self.history: list[list[int]] = []
        self.pages: dict[int, Page] = {}
        self.step: list[Scheduled] = []
        self.made = 0
        self.seen: set[str] = set()
        """What happened at all, for the statistics of the test."""
        self._numbers: dict[object, int] = {}
        manager.new_step_starts()

    # ---- calls

    def call(self, kind: str, a: int, b: int) -> None:
        getattr(self, f"do_{kind}")(a, b)
        assert_invariants(self.manager)

    def do_submit(self, a: int, b: int) -> None:
        if len(self.waiting) + len(self.running) + len(self.loading) >= MAX_REQUESTS:
            return
        longest = self.manager.max_model_len - 8
        if self.history and a % 4:
            old = self.history[a % len(self.history)]
            tokens = old[: max(1, len(old) * (1 + b % 8) // 8)]
            tokens = tokens + [1000 + 7 * self.made + i for i in range(a % 7)] if a % 3 else tokens
        else:
            tokens = list(range(1 + b * 5 % (longest - 1)))
        tokens = tokens[:longest]
        b //= 8
        request = Request(
            f"r{self.made}",
            tokens,
            cache_salt="salt" if b % 11 == 3 else None,
            lora=LoRA("adapter", "path") if b % 13 == 5 else None,
            num_encoder_tokens=a % 9,
            skip_reading_prefix_cache=b % 17 == 7,
            hasher=self.manager.hasher,
        )
        self.made += 1
        sequence = Sequence(request)
        self._extend_prefixes(sequence)
        self.history.append(tokens)
        self.waiting.append(sequence)

    def do_admit(self, a: int, b: int) -> None:
        if not self.waiting:
            return
        sequence = self.waiting[a % len(self.waiting)]
        request = sequence.request
        found = self._look_up(sequence) if request.num_computed_tokens == 0 else None
        hit = found.num_tokens if found else 0
        start = request.num_computed_tokens + hit
        external = self._external(request, start, a, b)
        delayed = external > 0 and b % 3 == 0
        new = 0 if delayed else self._chunk(request, start + external, 1 + b % 40)
        self._allocate(sequence, found, new, external, delayed, lookahead=0, a=a, b=b)

    def do_run(self, a: int, b: int) -> None:
        ready = [s for s in self.running if s not in [item.sequence for item in self.step]]
        if not ready:
            return
        sequence = ready[a % len(ready)]
        request = sequence.request
        drafts = 0 if self.has_states or request.num_computed_tokens < request.num_tokens - 1 else b % 4
        left = self.manager.max_model_len - request.num_computed_tokens
        wanted = request.num_tokens - request.num_computed_tokens
        new = min(self._chunk(request, request.num_computed_tokens, 1 + b % 40) + drafts, left)
        if wanted < 1 or new < 1:
            return
        lookahead = 0 if self.has_states else a % 3
        sequence.drafts = max(0, request.num_computed_tokens + new - request.num_tokens)
        self._allocate(sequence, None, new, 0, False, lookahead=lookahead, a=a, b=b)

    def do_end_step(self, a: int, b: int) -> None:
        scheduled = self._execute()
        for item in scheduled:
            self._settle(item.sequence, a, b)
        self.manager.new_step_starts()

    def do_finish(self, a: int, b: int) -> None:
        self.do_end_step(0, 0)
        everybody = self.running + self.waiting + self.loading
        if everybody:
            self._remove(everybody[a % len(everybody)]).status = RequestStatus.FINISHED

    def do_preempt(self, a: int, b: int) -> None:
        self.do_end_step(0, 0)
        if self.running:
            sequence = self.running[a % len(self.running)]
            request = self._remove(sequence)
            request.status = RequestStatus.PREEMPTED
            request.num_computed_tokens = request.num_in_flight_tokens = 0
            request.num_preemptions += 1
            self.waiting.append(sequence)

    def do_load(self, a: int, b: int) -> None:
        """A delayed load ends."""
        if not self.loading:
            return
        self.do_end_step(0, 0)
        sequence = self.loading.pop(a % len(self.loading))
        request = sequence.request
        self._write_loaded(Scheduled(sequence, sequence.loads_until, request.num_computed_tokens, 0))
        self.manager.cache_blocks(request, request.num_computed_tokens)
        if request.num_computed_tokens == request.num_tokens:
            request.num_computed_tokens -= 1
        request.status = RequestStatus.PREEMPTED if request.num_preemptions else RequestStatus.WAITING
        self.waiting.append(sequence)

    def do_evict(self, a: int, b: int) -> None:
        before = snapshot(self.manager)
        chosen = {a % self.manager.config.num_blocks, b % self.manager.config.num_blocks}
        self.manager.evict_blocks(chosen)
        after = snapshot(self.manager)
        assert (after.queue, after.refs, after.tables) == (before.queue, before.refs, before.tables)
        assert after.keys == {block: keys for block, keys in before.keys.items() if block not in chosen}

    def do_reset(self, a: int, b: int) -> None:
        if b % 4:
            return
        before = snapshot(self.manager)
        done = self.manager.reset_prefix_cache()
        after = snapshot(self.manager)
        assert done is (not before.refs)
        assert after.queue == before.queue
        assert after.keys == ({} if done else before.keys)

    # ---- allocation

    def _look_up(self, sequence: Sequence) -> ComputedBlocks:
        manager, request = self.manager, sequence.request
        before = snapshot(manager)
        found = manager.get_computed_blocks(request)
        again = manager.get_computed_blocks(request)
        assert again.blocks.get_block_ids() == found.blocks.get_block_ids()
        assert again[1:] == found[1:]
        assert snapshot(manager) == before, "a look-up changes nothing"
        request.shared_prefix_boundary = found.junction
        if manager.enable_caching and not request.skip_reading_prefix_cache:
            self._assert_hit_is_the_longest(request, found)
        else:
            assert found.num_tokens == 0
        return found

    def _assert_hit_is_the_longest(self, request: Request, found: ComputedBlocks) -> None:
        manager, unit = self.manager, self.manager.config.hash_unit
        numbers = manager.coordinator.numbers(request)

        def is_cached(group: int, tokens: int) -> int:
            at = tokens // unit
            if tokens % unit or not 0 < at <= len(numbers):
                return 0
            return int(manager.block_pool.keys.index[group, numbers[at - 1]])

        oracle = Oracle(manager.config, is_cached, manager.coordinator.sub_block_hits)
        assert found.num_tokens == oracle.joint_hit(request.num_tokens - 1)
        assert found.num_tokens < request.num_tokens
        assert found.junction == 0 or found.junction > found.num_tokens
        for g in oracle.cacheable():
            row = found.blocks.ids[g].tolist()
            size = manager.config.block_sizes[g]
            assert len(row) == -(-found.num_tokens // size)
            assert row[: found.num_tokens // size] == oracle.blocks(g, found.num_tokens)

    def _external(self, request: Request, start: int, a: int, b: int) -> int:
        unit = self.manager.config.scheduler_block_size
        room = (request.num_tokens - 1 - start) // unit
        if request.num_computed_tokens or a % 5 or room < 1 or start % unit or not self.manager.enable_caching:
            return 0
        return unit * (1 + b % room)

    def _chunk(self, request: Request, start: int, budget: int) -> int:
        return self.chunking.clip(request, start, max(1, min(request.num_tokens - start, budget)))

    def _allocate(
        self,
        sequence: Sequence,
        found: ComputedBlocks | None,
        new: int,
        external: int,
        delayed: bool,
        *,
        lookahead: int,
        a: int,
        b: int,
    ) -> None:
        manager, request = self.manager, sequence.request
        hit = found.num_tokens if found else 0
        local = request.num_computed_tokens + hit
        if not (new or external or hit):
            return
        waiting = request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        before = snapshot(manager)
        blocks = manager.allocate_slots(
            request,
            new,
            hit,
            found.blocks if found else None,
            num_lookahead_tokens=lookahead,
            num_external_computed_tokens=external,
            delay_cache_blocks=delayed,
            num_encoder_tokens=request.num_encoder_tokens if waiting else 0,
            full_sequence_must_fit=waiting and a % 2 == 0,
            reserved_blocks=a % 3 if delayed else 0,
            has_scheduled_reqs=bool(self.running),
        )
        total = local + external
        settled = max(0, total - request.num_in_flight_tokens)
        if blocks is None:
            self.seen.add("refused running" if not waiting else "refused waiting")
            assert_only_dead_blocks_left(manager, before, snapshot(manager), request.request_id, settled)
            return
        if hit:
            self.seen.add("hit")
        if hit % max(manager.config.block_sizes):
            self.seen.add("hit inside a block")
        if external:
            self.seen.add("delayed load" if delayed else "load")
        self._assert_backed(request, total, total + new, lookahead, settled)
        self._assert_watermark(before, waiting)
        request.num_computed_tokens = total + new
        if waiting:
            self.waiting.remove(sequence)
            (self.loading if delayed else self.running).append(sequence)
        request.status = RequestStatus.LOADING if delayed else RequestStatus.RUNNING
        if delayed:
            sequence.loads_until = local
            self.step.append(Scheduled(sequence, total, total, total))
        else:
            self.step.append(Scheduled(sequence, local, total, total + new))

    def _assert_backed(self, request: Request, total: int, main: int, lookahead: int, settled: int) -> None:
        """What the step reads and writes has blocks; what nobody reads any more has none."""
        config = self.manager.config
        slots = min(main + lookahead, self.manager.max_model_len)
        rows = self.manager.get_block_ids(request.request_id)
        for group, row, size in zip(config.groups, rows, config.block_sizes, strict=True):
            spec = group.spec
            if spec.source == "encoder":
                assert len(row) == -(-request.num_encoder_tokens // size)
                assert (row > 0).all()
                continue
            needed = {j for part in spec.live_blocks(total, size) for j in part}
            if spec.state:
                needed |= {j for part in spec.live_blocks(main, size) for j in part}
            else:
                needed |= set(range(total // size, -(-slots // size))) if total < slots else set()
            assert all(row[j] > 0 for j in needed), f"{spec.kind}: a block that the step needs is not there"
            live = {j for part in spec.live_blocks(settled, size) for j in part}
            dead = [j for j in range(min(settled // size, len(row))) if j not in live and row[j]]
            assert not dead or spec.state, f"{spec.kind}: dead blocks {dead} are kept"

    def _assert_watermark(self, before: Snapshot, waiting: bool) -> None:
        if waiting and self.running:
            assert self.manager.num_free_blocks >= min(self.manager.watermark_blocks, len(before.queue))

    # ---- the model

    def _execute(self) -> list[Scheduled]:
        """Run the step in hand: copies, loads, states, attention writes, attention reads."""
        scheduled, self.step = self.step, []
        for source, target in self.manager.take_copies():
            self.seen.add("copy")
            self.pages[target] = dict(self.pages.get(source, {}))
        self.manager.release_copies()
        assert not self.manager.take_copies()
        for item in scheduled:
            self._write_loaded(item)
        for item in scheduled:
            if item.main > item.total:
                self._read_state(item)
        for item in scheduled:
            if item.main > item.total:
                self._write(item)
        for item in scheduled:
            if item.main > item.total:
                self._read(item)
        return scheduled

    def _groups(self, request: Request) -> list[tuple[object, int, list[int]]]:
        config = self.manager.config
        rows = self.manager.get_block_ids(request.request_id)
        return [
            (group.spec, size, row.tolist())
            for group, size, row in zip(config.groups, config.block_sizes, rows, strict=True)
            if group.spec.source == "decoder"
        ]

    def _write_loaded(self, item: Scheduled) -> None:
        for spec, size, row in self._groups(item.sequence.request):
            if item.total <= item.hit:
                continue
            if spec.state:
                self.pages[row[(item.total - 1) // size]] = {-1: item.sequence.prefixes[item.total - 1]}
                continue
            for t in range(item.hit, item.total):
                if row[t // size]:
                    self.pages.setdefault(row[t // size], {})[t % size] = item.sequence.prefixes[t]

    def _write(self, item: Scheduled) -> None:
        prefixes = self._prefixes_to(item)
        for spec, size, row in self._groups(item.sequence.request):
            if spec.state:
                self.pages[row[(item.main - 1) // size]] = {-1: prefixes[item.main - 1]}
                continue
            for t in range(item.total, item.main):
                self.pages.setdefault(row[t // size], {})[t % size] = prefixes[t]

    def _read_state(self, item: Scheduled) -> None:
        for spec, size, row in self._groups(item.sequence.request):
            if spec.state and item.total:
                page = self.pages.get(row[(item.total - 1) // size], {})
                assert page.get(-1) == item.sequence.prefixes[item.total - 1], "a step starts from a wrong state"

    def _read(self, item: Scheduled) -> None:
        prefixes = self._prefixes_to(item)
        for spec, size, row in self._groups(item.sequence.request):
            if spec.state:
                continue
            for p in range(item.total, item.main):
                for t in (t for part in spec.live(p) for t in part):
                    page = self.pages.get(row[t // size], {})
                    assert page.get(t % size) == prefixes[t], f"{spec.kind}: token {p} reads a wrong entry at {t}"

    def _prefixes_to(self, item: Scheduled) -> list[int]:
        """The sequence's prefixes, and made-up ones for its drafts."""
        missing = item.main - len(item.sequence.prefixes)
        return item.sequence.prefixes + [-1 - i for i in range(missing)]

    def _settle(self, sequence: Sequence, a: int, b: int) -> None:
        """Sample where a sequence has computed all its tokens; some of its drafts are rejected."""
        request = sequence.request
        if sequence not in self.running:
            return
        if request.num_computed_tokens < request.num_tokens:
            if not self.has_states or a % 2:
                request.num_in_flight_tokens = min(b % 4, request.num_computed_tokens)
            return
        request.num_in_flight_tokens = 0
        over = request.num_computed_tokens - request.num_tokens
        room = self.manager.max_model_len - request.num_tokens
        if room < 1:
            self._remove(sequence)
            return
        request.num_computed_tokens -= over
        request.append_output_token_ids([5000 + a % 2])
        self._extend_prefixes(sequence)

    def _extend_prefixes(self, sequence: Sequence) -> None:
        request = sequence.request
        parent: object = (
            sequence.prefixes[-1] if sequence.prefixes else (request.extra_keys.salt, request.extra_keys.lora)
        )
        for token in request.token_ids[len(sequence.prefixes) :]:
            parent = self._numbers.setdefault((parent, token), len(self._numbers))
            sequence.prefixes.append(parent)

    def _remove(self, sequence: Sequence) -> Request:
        self.manager.free(sequence.request)
        for queue in (self.running, self.waiting, self.loading):
            if sequence in queue:
                queue.remove(sequence)
        return sequence.request
