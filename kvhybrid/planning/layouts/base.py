"""The interface of memory layouts, and the layout of a cache with a page size for each kind of layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvhybrid.cache.config import KVCacheGroup
from kvhybrid.planning.grouping import kind_groups
from kvhybrid.planning.pages import cover_request
from kvhybrid.specs import KVCacheSpec

if TYPE_CHECKING:
    from kvhybrid.managers.pool.base import PoolConfig


@dataclass(frozen=True)
class LayerPlace:
    """Where the pages of a layer lie: in a tensor, from a byte on, one every ``stride`` bytes."""

    tensor: int
    offset: int
    stride: int


@dataclass(frozen=True)
class Division:
    """A memory that is divided into blocks."""

    num_blocks: int
    """As in `KVCacheConfig`."""
    pools: PoolConfig | None
    tensors: tuple[tuple[int, int], ...]
    """Rows and bytes per row of each tensor."""
    places: Mapping[str, LayerPlace]
    """Of each layer."""

    @property
    def memory_bytes(self) -> int:
        return sum(rows * row_bytes for rows, row_bytes in self.tensors)

    def has_room(self, blocks: Sequence[int]) -> bool:
        """Whether one request that holds at most ``blocks`` blocks of each group always fits."""
        return self.num_requests(blocks) > 0 if self.pools is None else self.pools.has_room(blocks)

    def num_requests(self, blocks: Sequence[int]) -> int:
        """How many requests that hold ``blocks`` blocks of each group fit at once in an empty cache."""
        if self.pools is None:
            return (self.num_blocks - 1) // sum(blocks)
        return self.pools.num_requests(blocks)


@dataclass(frozen=True)
class Arrangement:
    """Layers in groups, with their page sizes."""

    specs: Mapping[str, KVCacheSpec]
    """Of every layer, with the block size and padding of its group."""
    groups: tuple[KVCacheGroup, ...]
    block_bytes: tuple[int, ...]
    """Per group, the bytes of one block over all its layers."""


class MemoryLayout(ABC):
    """Turns layers into groups and page sizes, and memory into pools."""

    @abstractmethod
    def arrange(
        self,
        layer_specs: Mapping[str, KVCacheSpec],
        *,
        page_multiple: int,
        max_model_len: int,
        draft_layers: Collection[str] = (),
    ) -> Arrangement:
        """Group the layers and set the sizes of their pages; `plan_cache` describes the arguments."""

    @abstractmethod
    def divide(self, arrangement: Arrangement, memory_bytes: int, blocks: Sequence[int]) -> Division:
        """Divide ``memory_bytes``. A request of the maximum length holds at most ``blocks`` blocks of each group.

        Raises `PlanningError` if there is no room for a block in addition to what is never handed out.
        """

    @abstractmethod
    def bytes_for(self, arrangement: Arrangement, blocks: Sequence[int], num_requests: int = 1) -> int:
        """The least memory in which requests that hold ``blocks`` blocks of each group always fit together."""


class KindLayout(MemoryLayout):
    """One group per kind of layer, with pages of its own size: nothing is padded.

    Layers of equal spec are one kind. A block of a kind has a page of each of its layers.
    """

    def arrange(
        self,
        layer_specs: Mapping[str, KVCacheSpec],
        *,
        page_multiple: int,
        max_model_len: int,
        draft_layers: Collection[str] = (),
    ) -> Arrangement:
        specs = {
            layer: replace(cover_request(spec, max_model_len), padded_page_bytes=None)
            for layer, spec in layer_specs.items()
        }
        groups = kind_groups(specs, draft_layers)
        sizes = tuple(sum(specs[layer].page_bytes for layer in group.layers) for group in groups)
        return Arrangement(specs, groups, sizes)
