"""One pool for all groups, whose pages are brought to the size of the largest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kvhybrid.cache.config import KVCacheGroup
from kvhybrid.planning.error import PlanningError
from kvhybrid.planning.grouping import group_layers
from kvhybrid.planning.layouts.base import Arrangement, Division, LayerPlace, MemoryLayout
from kvhybrid.planning.pages import unify_pages
from kvhybrid.specs import KVCacheSpec


@dataclass(frozen=True, kw_only=True)
class PaddedLayout(MemoryLayout):
    """Any group can hold any block: layer i of every group uses page i of a block."""

    def arrange(
        self,
        layer_specs: Mapping[str, KVCacheSpec],
        *,
        page_multiple: int,
        max_model_len: int,
        draft_layers: Collection[str] = (),
    ) -> Arrangement:
        specs = unify_pages(layer_specs, page_multiple=page_multiple, max_model_len=max_model_len)
        groups = group_layers(specs, draft_layers)
        size = sum(specs[layer].page_bytes for layer in _longest(groups))
        return Arrangement(specs, groups, (size,) * len(groups))

    def divide(self, arrangement: Arrangement, memory_bytes: int, blocks: Sequence[int]) -> Division:
        size = arrangement.block_bytes[0]
        num_blocks = memory_bytes // size
        if num_blocks < 2:
            raise PlanningError(
                f"no memory for the cache: {memory_bytes} bytes has no room for a block in addition to the null "
                f"block; a block takes {size} bytes"
            )
        groups, specs = arrangement.groups, arrangement.specs
        pages = [specs[layer].page_bytes for layer in _longest(groups)]
        places = {layer: LayerPlace(i, 0, pages[i]) for group in groups for i, layer in enumerate(group.layers)}
        return Division(num_blocks, None, tuple((num_blocks, page) for page in pages), places)

    def bytes_for(self, arrangement: Arrangement, blocks: Sequence[int], num_requests: int = 1) -> int:
        return (1 + num_requests * sum(blocks)) * arrangement.block_bytes[0]


def _longest(groups: Sequence[KVCacheGroup]) -> tuple[str, ...]:
    """The layers of the longest group."""
    return max((group.layers for group in groups), key=len)
