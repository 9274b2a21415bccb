"""SGLang's sides: its radix cache, the tree in Python and the compiled core. One full group, pages of 16 tokens.

Both keep tokens instead of keys and have no decode steps, so that they have a loop of their own for the same
trace: match a prompt, evict until its pages are free, insert it, release the oldest request. Free pages are in a
list, as SGLang's own allocator keeps them. Imports the peer, the standard library and this folder.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections import deque
from collections.abc import Iterator
from importlib.metadata import version
from time import process_time
from typing import Any

import torch

from runs.speed.side import Run, Side, repeated, settle_heap
from runs.speed.trace import read_trace
from runs.speed.works import BLOCK, Size

OFFSETS = torch.arange(BLOCK)


class Pages:
    """The free pages of a pool, handed out from the front. A page is given as the indices of its tokens."""

    device = "cpu"

    def __init__(self, count: int) -> None:
        self._free = torch.arange(1, count, dtype=torch.int64)
        self._returned: list[Any] = []

    def __len__(self) -> int:
        if self._returned:
            self._free = torch.cat([self._free, *self._returned])
            self._returned = []
        return len(self._free)

    def take(self, pages: int) -> Any:
        assert pages <= len(self)
        taken, self._free = self._free[:pages], self._free[pages:]
        return (taken[:, None] * BLOCK + OFFSETS).reshape(-1)

    def free_segment(self, indices: Any, start_pos: int = 0) -> None:
        if len(indices):
            self._returned.append(indices[::BLOCK] // BLOCK)


class Radix(Side):
    """The loop. What differs between the two trees is below."""

    def version(self) -> str:
        return f"sglang {version('sglang')}"

    def open(self, work: str, size: Size) -> Iterator[Run]:
        if work != "a:prompts":
            raise ValueError(f"{work}: a radix cache has prompts of one full group; accepted: a:prompts")
        trace = read_trace(size.trace, size.requests)
        prompts = [array("q", prompt.tokens()) for prompt in trace]

        def run() -> Run:
            pages = Pages(size.blocks)
            self.start(pages)
            settle_heap()
            began = process_time()
            hits = self._serve(prompts, pages, size)
            seconds = process_time() - began
            return Run({"all": seconds}, {"all": sum(len(prompt.keys) for prompt in trace)}, hits)

        return repeated(run)

    def _serve(self, prompts: list[Any], pages: Pages, size: Size) -> list[int]:
        live: deque[tuple[Any, Any]] = deque()
        hits: list[int] = []

        def end_oldest() -> None:
            node, tail = live.popleft()
            self.unlock(node)
            pages.free_segment(tail)

        for tokens in prompts:
            node, hit = self.match(tokens, (len(tokens) - 1) // BLOCK * BLOCK)
            self.lock(node)
            need = -(-(len(tokens) + size.decode_steps) // BLOCK) - hit // BLOCK
            while len(pages) < need:
                self.evict((need - len(pages)) * BLOCK)
                if len(pages) < need:
                    end_oldest()
            full = len(tokens) // BLOCK * BLOCK
            indices = torch.cat([self.prefix(node, hit), pages.take(need)])
            self.insert(tokens[:full], indices[:full], hit)
            whole, _ = self.match(tokens, full)
            self.lock(whole)
            self.unlock(node)
            live.append((whole, indices[full:]))
            if len(live) > size.live:
                end_oldest()
            hits.append(hit)
        return hits

    @abstractmethod
    def start(self, pages: Pages) -> None:
        """An empty tree whose evictions go to ``pages``."""

    @abstractmethod
    def match(self, tokens: Any, length: int) -> tuple[Any, int]:
        """The node that the first ``length`` tokens reach, and how many of them are there."""

    @abstractmethod
    def lock(self, node: Any) -> None: ...

    @abstractmethod
    def unlock(self, node: Any) -> None: ...

    @abstractmethod
    def evict(self, tokens: int) -> None: ...

    @abstractmethod
    def prefix(self, node: Any, hit: int) -> Any:
        """The indices of the tokens that were hit."""

    @abstractmethod
    def insert(self, tokens: Any, indices: Any, hit: int) -> None: ...


class RadixTree(Radix):
    """`sglang.srt.mem_cache.radix_cache`."""

    name = "sglang"

    def start(self, pages: Pages) -> None:
        from sglang.srt.mem_cache import base_prefix_cache, radix_cache

        self._params, self._key = base_prefix_cache, radix_cache.RadixKey
        self._tree = radix_cache.RadixCache.create_simulated(mock_allocator=pages, page_size=BLOCK)

    def match(self, tokens: Any, length: int) -> tuple[Any, int]:
        key = self._key(tokens if length == len(tokens) else tokens[:length])
        found = self._tree.match_prefix(self._params.MatchPrefixParams(key=key))
        return found.last_device_node, found.device_prefix_len

    def lock(self, node: Any) -> None:
        self._tree.inc_lock_ref(node)

    def unlock(self, node: Any) -> None:
        self._tree.dec_lock_ref(node)

    def evict(self, tokens: int) -> None:
        self._tree.evict(self._params.EvictParams(num_tokens=tokens))

    def prefix(self, node: Any, hit: int) -> Any:
        return self._tree.path_device_indices(node) if hit else torch.empty(0, dtype=torch.int64)

    def insert(self, tokens: Any, indices: Any, hit: int) -> None:
        self._tree.insert(self._params.InsertParams(key=self._key(tokens), value=indices))


class CompiledCore(Radix):
    """`sglang.srt.mem_cache.rust_tree_core`."""

    name = "sglang core"

    def start(self, pages: Pages) -> None:
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.rust_tree_core.adapter import RustUnifiedTreeCore
        from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

        self._full, self._pages = ComponentType.FULL, pages
        self._core = RustUnifiedTreeCore(
            CacheInitParams(
                disable=False,
                req_to_token_pool=None,
                token_to_kv_pool_allocator=None,
                page_size=BLOCK,
                tree_components=(self._full,),
            )
        )
        self._tree, self._types = self._core._binding, self._core._bindings
        self._receipts: dict[Any, list[Any]] = {}

    def match(self, tokens: Any, length: int) -> tuple[Any, int]:
        asked = self._types.MatchParamsBinding(key=tokens[:length], extra_key=None, cache_salt=None)
        found = self._tree.match_prefix(asked)
        return found.last_device_node_id, found.device_prefix_len

    def lock(self, node: Any) -> None:
        self._receipts.setdefault(node, []).append(self._core.inc_lock_ref(node).to_dec_params())

    def unlock(self, node: Any) -> None:
        self._core.dec_lock_ref(node, self._receipts[node].pop())

    def evict(self, tokens: int) -> None:
        kind, evicted = int(self._full), 0
        self._tree.evict_device_start(kind, tokens)
        while evicted < tokens:
            step = self._core.evict_device_next_node(self._full, {self._full: evicted})
            freed = _freed(step)
            if step.node_id is not None:
                freed += _freed(self._core.evict_device_leaf(step.node_id, False))
            elif not step.made_progress:
                break
            for indices in freed:
                self._pages.free_segment(indices)
                evicted += len(indices)
        self._tree.evict_device_end(kind)

    def prefix(self, node: Any, hit: int) -> Any:
        return torch.zeros(hit, dtype=torch.int64)  # the core has them already and does not read these

    def insert(self, tokens: Any, indices: Any, hit: int) -> None:
        self._tree.begin_insert(
            self._types.InsertParamsBinding(
                key=tokens,
                value=indices,
                extra_key=None,
                cache_salt=None,
                session_id=None,
                mamba_value=None,
                prev_prefix_len=hit,
                swa_evicted_seqlen=0,
                swa_branching_seqlen=None,
                inserted_len=0,
                priority=0,
                track_adopted_ranges=False,
                rotation_base=0,
            )
        )


def _freed(step: Any) -> list[Any]:
    """What an eviction step freed, taken out of it so that it counts once."""
    found = [indices for group in step.device_frees.values() for indices in group]
    found += [indices for action in step.cache_actions for indices in getattr(action, "indices", ())]
    for kept in (step.device_frees, step.cache_actions, step.host_frees):
        kept.clear()
    return found
