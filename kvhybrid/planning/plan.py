"""A cache plan: the groups, the pool, and what they come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvhybrid.cache.config import KVCacheConfig
from kvhybrid.specs import KVCacheSpec


@dataclass(frozen=True)
class CachePlan:
    """What `plan_cache` decided. All sizes are those of one device.

    Layer i of every group lies in tensor i, which holds ``tensor_page_bytes[i]`` bytes for every block.
    """

    config: KVCacheConfig
    layer_specs: Mapping[str, KVCacheSpec]
    """Every layer's spec after planning: its block size and padding are those of its group."""
    tensor_page_bytes: tuple[int, ...]
    """Bytes of one block in each tensor. All equal, but for one uniform type with pages of several sizes."""
    blocks_per_request: tuple[int, ...]
    """The most blocks that a request of ``max_model_len`` tokens holds at once, group by group."""
    max_model_len: int
    max_in_flight_tokens: int

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool, the null block included."""
        return self.config.num_blocks

    @property
    def page_bytes(self) -> int:
        """Bytes of one block of one layer, the largest where layers differ."""
        return max(self.tensor_page_bytes)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all tensors, whichever group holds it."""
        return sum(self.tensor_page_bytes)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the whole pool: what is left of the memory that was offered is less than one block."""
        return self.num_blocks * self.bytes_per_block

    @property
    def concurrency(self) -> float:
        """How many requests of ``max_model_len`` tokens the blocks serve. Counts the null block as well."""
        return self.num_blocks / sum(self.blocks_per_request)

    @property
    def capacity_tokens(self) -> int:
        """Tokens of requests of ``max_model_len`` that the blocks serve: concurrency × ``max_model_len``,
        rounded down.

        For one full-attention group and a length of whole blocks this is blocks × block size.
        """
        return self.num_blocks * self.max_model_len // sum(self.blocks_per_request)

    @property
    def padding_layers(self) -> int:
        """Pages of a block that no layer uses, summed over one block of every group."""
        return sum(len(self.tensor_page_bytes) - len(group.layers) for group in self.config.groups)

    @property
    def padding_bytes_per_block(self) -> tuple[int, ...]:
        """Bytes of a block that hold nothing, group by group: padded pages and tensors that no layer uses."""
        return tuple(
            self.bytes_per_block - sum(self.layer_specs[layer].unpadded_page_bytes for layer in group.layers)
            for group in self.config.groups
        )

    @property
    def padding_share(self) -> float:
        """Share of the pool, 0 to 1, that padding wastes where every group holds as many blocks."""
        return sum(self.padding_bytes_per_block) / (len(self.config.groups) * self.bytes_per_block)
