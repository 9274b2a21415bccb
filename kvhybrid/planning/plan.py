"""A cache plan: the groups, the pool, and figures derived from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvhybrid.cache.config import KVCacheConfig
from kvhybrid.specs import KVCacheSpec


@dataclass(frozen=True)
class CachePlan:
    """The result of `plan_cache`. All sizes are per device.

    Layer i of every group uses tensor i, which has ``tensor_page_bytes[i]`` bytes per block.
    """

    config: KVCacheConfig
    layer_specs: Mapping[str, KVCacheSpec]
    """Every layer's spec after planning, with the block size and padding of its group."""
    tensor_page_bytes: tuple[int, ...]
    """Bytes of one block in each tensor. All equal, except for one uniform type with pages of different sizes."""
    blocks_per_request: tuple[int, ...]
    """Per group, the most blocks that a request of ``max_model_len`` tokens holds at once."""
    max_model_len: int
    max_in_flight_tokens: int

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool, the null block included."""
        return self.config.num_blocks

    @property
    def page_bytes(self) -> int:
        """Bytes of one block of one layer; the maximum if layers differ."""
        return max(self.tensor_page_bytes)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all tensors, the same for every group."""
        return sum(self.tensor_page_bytes)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the whole pool, less than one block below the memory that was offered."""
        return self.num_blocks * self.bytes_per_block

    @property
    def concurrency(self) -> float:
        """How many requests of ``max_model_len`` tokens fit in the pool, counting the null block as usable."""
        return self.num_blocks / sum(self.blocks_per_request)

    @property
    def capacity_tokens(self) -> int:
        """Tokens that fit in the pool in requests of ``max_model_len``: concurrency × ``max_model_len``, rounded
        down.

        For one full-attention group and a multiple of the block size, this is blocks × block size.
        """
        return self.num_blocks * self.max_model_len // sum(self.blocks_per_request)

    @property
    def padding_layers(self) -> int:
        """Unused pages in one block of every group, because the group has fewer layers than there are tensors."""
        return sum(len(self.tensor_page_bytes) - len(group.layers) for group in self.config.groups)

    @property
    def padding_bytes_per_block(self) -> tuple[int, ...]:
        """Per group, unused bytes of a block: page padding and tensors without a layer."""
        return tuple(
            self.bytes_per_block - sum(self.layer_specs[layer].unpadded_page_bytes for layer in group.layers)
            for group in self.config.groups
        )

    @property
    def padding_share(self) -> float:
        """Share of the pool that is padding, 0 to 1, if all groups hold equally many blocks."""
        return sum(self.padding_bytes_per_block) / (len(self.config.groups) * self.bytes_per_block)
