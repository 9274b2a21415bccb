"""A cache of states, to see where a retention policy keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.conformance.invariants import check_invariants
from kvhybrid.managers.retention.base import Retention
from kvhybrid.scheduling.chunking import PrefillChunking
from kvhybrid.specs import FullAttentionSpec, MambaSpec

BLOCK = 4


class StateCache:
    """One full group and two groups of states, with blocks of 4 tokens."""

    def __init__(
        self, policy: type[Retention], interval: int | None = None, num_blocks: int = 400, **parameters: Any
    ) -> None:
        specs = (FullAttentionSpec(block_size=BLOCK), MambaSpec(block_size=BLOCK), MambaSpec(block_size=BLOCK))
        groups = tuple(KVCacheGroup(f"g{g}", spec) for g, spec in enumerate(specs))
        self.manager = KVCacheManager(
            KVCacheConfig(groups, num_blocks),
            max_model_len=1000,
            retention=partial(policy, **parameters) if parameters else policy,
            retention_interval=interval,
        )
        self.chunking = PrefillChunking(self.manager.coordinator)

    def serve(self, tokens: Iterable[int], output: Iterable[int] = (), budget: int = BLOCK) -> int:
        """Compute a prompt in steps of at most ``budget`` tokens, and then an output. Returns the prompt's hit."""
        manager, request = self.manager, Request("r", list(tokens), hasher=self.manager.hasher)
        manager.new_step_starts()
        found = manager.get_computed_blocks(request)
        request.shared_prefix_boundary = found.junction
        adopted, at = found.num_tokens, found.num_tokens
        for token in (None, *output):
            if token is not None:
                request.append_output_token_ids([token])
            while at < request.num_tokens:
                count = self.chunking.clip(request, at, min(budget, request.num_tokens - at))
                assert (
                    manager.allocate_slots(request, count, adopted, found.blocks if adopted else None) is not None
                )
                at, adopted = at + count, 0
                request.num_computed_tokens, request.status = at, RequestStatus.RUNNING
                manager.new_step_starts()
                check_invariants(manager)
        manager.free(request)
        check_invariants(manager)
        return found.num_tokens

    def states(self, tokens: Iterable[int]) -> list[int]:
        """The positions on the prefix ``tokens`` from which both groups of states can resume."""
        request = Request("look", list(tokens), hasher=self.manager.hasher)
        numbers = self.manager.coordinator.numbers(request)
        index = self.manager.block_pool.keys.index
        return [(j + 1) * BLOCK for j, number in enumerate(numbers.tolist()) if index[1:3, number].all()]
