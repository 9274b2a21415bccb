"""The calls of a cache manager that a recorder can stand before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kvhybrid.cache.blocks import ComputedBlocks, KVCacheBlocks
from kvhybrid.cache.request import Request


class CacheCalls(Protocol):
    """As `kvhybrid.cache.manager.KVCacheManager` has them."""

    def get_computed_blocks(self, request: Request) -> ComputedBlocks: ...

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        *,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
    ) -> KVCacheBlocks | None: ...

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None: ...

    def free(self, request: Request) -> None: ...

    def new_step_starts(self) -> None: ...

    def release_copies(self) -> None: ...

    def evict_blocks(self, block_ids: Iterable[int], group: int | None = None) -> None: ...

    def reset_prefix_cache(self) -> bool: ...
