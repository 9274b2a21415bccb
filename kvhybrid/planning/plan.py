"""A cache plan: the groups, the pool, and figures derived from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvhybrid.cache.config import KVCacheConfig
from kvhybrid.planning.layouts.base import Division
from kvhybrid.specs import KVCacheSpec


@dataclass(frozen=True)
class CachePlan:
    """The result of `plan_cache`. All sizes are per device."""

    config: KVCacheConfig
    layer_specs: Mapping[str, KVCacheSpec]
    """Every layer's spec after planning, with the block size and padding of its group."""
    block_bytes: tuple[int, ...]
    """Per group, the bytes of one block over all tensors: with one pool for all groups, the same for each."""
    division: Division
    """The tensors, and the place of every layer in them."""
    blocks_per_request: tuple[int, ...]
    """Per group, the most blocks that a request of ``max_model_len`` tokens holds at once."""
    max_model_len: int
    max_in_flight_tokens: int

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool, the null block included; with several pools, their units of memory."""
        return self.config.num_blocks

    @property
    def tensor_page_bytes(self) -> tuple[int, ...]:
        """Bytes per row of each tensor. With one pool for all groups, layer i of every group uses tensor i, and a
        row is a page; all are equal, except for one uniform type with pages of different sizes."""
        return tuple(row_bytes for _, row_bytes in self.division.tensors)

    @property
    def page_bytes(self) -> int:
        """Bytes of one block of one layer; the maximum if layers differ."""
        return max(spec.page_bytes for spec in self.layer_specs.values())

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block, the same for every group; with several pools, those of the largest block."""
        return max(self.block_bytes)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the whole pool, at most the memory that was offered."""
        return self.division.memory_bytes

    def request_bytes(self, blocks: Sequence[int]) -> int:
        """Bytes of a request that holds ``blocks`` blocks of each group."""
        return sum(count * size for count, size in zip(blocks, self.block_bytes, strict=True))

    @property
    def _exact_concurrency(self) -> Fraction:
        if self.config.pools is not None:
            return self.config.pools.concurrency(self.blocks_per_request)
        return Fraction(self.num_blocks, sum(self.blocks_per_request))

    @property
    def concurrency(self) -> float:
        """How many requests of ``max_model_len`` tokens fit in the pool, counting the null block of a shared pool
        as usable."""
        return float(self._exact_concurrency)

    @property
    def capacity_tokens(self) -> int:
        """Tokens that fit in the pool in requests of ``max_model_len``: concurrency × ``max_model_len``, rounded
        down.

        For one full-attention group and a multiple of the block size, this is blocks × block size.
        """
        return int(self._exact_concurrency * self.max_model_len)

    @property
    def padding_layers(self) -> int:
        """Unused pages in one block of every group, because the group has fewer layers than there are tensors."""
        if self.config.pools is not None:
            return 0
        return sum(len(self.tensor_page_bytes) - len(group.layers) for group in self.config.groups)

    @property
    def padding_bytes_per_block(self) -> tuple[int, ...]:
        """Per group, unused bytes of a block: page padding and tensors without a layer."""
        return tuple(
            size - sum(self.layer_specs[layer].unpadded_page_bytes for layer in group.layers)
            for group, size in zip(self.config.groups, self.block_bytes, strict=True)
        )

    @property
    def padding_share(self) -> float:
        """Share of the pool that is padding, 0 to 1, if all groups hold equally many blocks."""
        return sum(self.padding_bytes_per_block) / sum(self.block_bytes)
