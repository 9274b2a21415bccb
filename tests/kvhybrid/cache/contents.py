"""What every page holds, written down beside a cache manager: whether a request reads what it would have computed.

Steps work like the engine's: copies first, then loads, then every layer writes, then every layer reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request
from kvhybrid.specs import KVCacheSpec
from tests.kvhybrid.cache.snapshots import page_rows

Page = dict[int, int]
"""By token offset the prefix whose entry it is; a state lies at -1."""


@dataclass(frozen=True)
class Scheduled:
    """One request's part of the current step: tokens ``[total, main)``, after a load of ``[hit, total)``."""

    request: Request
    hit: int
    total: int
    main: int


class Contents:
    """The pages of one cache manager."""

    def __init__(self, manager: KVCacheManager) -> None:
        self.manager = manager
        self.step: list[Scheduled] = []
        self._pages: dict[int, Page] = {}
        self._numbers: dict[object, int] = {}
        self._prefixes: dict[str, list[int]] = {}

    def prefixes(self, request: Request) -> list[int]:
        """For every token a number for all tokens up to it, under the request's salt and adapter."""
        found = self._prefixes.setdefault(request.request_id, [])
        parent: object = found[-1] if found else (request.extra_keys.salt, request.extra_keys.lora)
        for token in request.token_ids[len(found) :]:
            parent = self._numbers.setdefault((parent, token), len(self._numbers))
            found.append(parent)
        return found

    def is_scheduled(self, request_id: str) -> bool:
        return any(item.request.request_id == request_id for item in self.step)

    def copy(self, copies: list[tuple[int, int]]) -> None:
        for source, target in copies:
            self._pages[target] = dict(self._pages.get(source, {}))

    def execute(self) -> None:
        """Run the step: loads, states, writes, reads. Copies were made before."""
        step, self.step = self.step, []
        for item in step:
            self.load(item)
        computing = [item for item in step if item.main > item.total]
        for item in computing:
            self._read_state(item)
        for item in computing:
            self._write(item)
        for item in computing:
            self._read(item)

    def load(self, item: Scheduled) -> None:
        """What a loader fills."""
        prefixes = self.prefixes(item.request)
        for spec, size, row in self._groups(item.request) if item.total > item.hit else ():
            if spec.state:
                self._pages[row[(item.total - 1) // size]] = {-1: prefixes[item.total - 1]}
                continue
            for t in range(item.hit, item.total):
                if row[t // size]:
                    self._pages.setdefault(row[t // size], {})[t % size] = prefixes[t]

    def accept(self, request: Request, start: int, end: int) -> None:
        """Tokens ``[start, end)`` were written as drafts and turned out to be the request's own."""
        prefixes = self.prefixes(request)
        for spec, size, row in self._groups(request):
            for t in () if spec.state else range(start, end):
                if row[t // size]:
                    self._pages[row[t // size]][t % size] = prefixes[t]

    def _groups(self, request: Request) -> Iterator[tuple[KVCacheSpec, int, list[int]]]:
        config, rows = self.manager.config, page_rows(self.manager, request.request_id)
        for group, size, row in zip(config.groups, config.block_sizes, rows, strict=True):
            if group.spec.source == "decoder":
                yield group.spec, size, row

    def _read_state(self, item: Scheduled) -> None:
        for spec, size, row in self._groups(item.request):
            if spec.state and item.total:
                page = self._pages.get(row[(item.total - 1) // size], {})
                assert page.get(-1) == self.prefixes(item.request)[item.total - 1], (
                    "a step starts from a wrong state"
                )

    def _write(self, item: Scheduled) -> None:
        prefixes = self._prefixes_to(item)
        for spec, size, row in self._groups(item.request):
            if spec.state:
                self._pages[row[(item.main - 1) // size]] = {-1: prefixes[item.main - 1]}
                continue
            for t in range(item.total, item.main):
                self._pages.setdefault(row[t // size], {})[t % size] = prefixes[t]

    def _read(self, item: Scheduled) -> None:
        prefixes = self._prefixes_to(item)
        for spec, size, row in self._groups(item.request):
            for p in () if spec.state else range(item.total, item.main):
                for t in (t for part in spec.live(p) for t in part):
                    page = self._pages.get(row[t // size], {})
                    assert page.get(t % size) == prefixes[t], f"{spec.kind}: token {p} reads a wrong entry at {t}"

    def _prefixes_to(self, item: Scheduled) -> list[int]:
        """The request's prefixes, and made-up ones for its drafts."""
        prefixes = self.prefixes(item.request)
        return prefixes + [-1 - i for i in range(item.main - len(prefixes))]
