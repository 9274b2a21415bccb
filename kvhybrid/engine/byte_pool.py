"""The byte pool: the tensors that hold the blocks of all layers and groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor

from kvhybrid.models.base import LayerCache
from kvhybrid.planning import CachePlan
from kvhybrid.specs import KVCacheSpec


class BytePool:
    """The pages of a plan: ``plan.num_blocks`` in every tensor, ``plan.memory_bytes`` in total.

    Layer i of every group uses tensor i, and a block id refers to one page in every tensor, so a block can belong
    to any group. A layer accesses its pages through `views`, which share the pool's memory and skip padding by
    stride.
    """

    def __init__(self, plan: CachePlan, device: torch.device | str = "cpu") -> None:
        self._plan = plan
        # Zeros and not garbage, since a kernel may read the null block with weight 0, and 0 · NaN is NaN.
        self.tensors = tuple(
            torch.zeros((plan.num_blocks, page_bytes), dtype=torch.uint8, device=device)
            for page_bytes in plan.tensor_page_bytes
        )
        """uint8 ``[num_blocks, page_bytes]``, one per layer of the longest group."""

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def views(self) -> dict[str, LayerCache]:
        """Every layer's page parts as ``[num_blocks, *part.shape]``, sharing the pool's memory.

        Raises ValueError if a spec's parts cannot be viewed in place; see `page_part_offsets`.
        """
        return {
            layer: _layer_cache(tensor, self._plan.layer_specs[layer])
            for group in self._plan.config.groups
            for layer, tensor in zip(group.layers, self.tensors, strict=False)
        }

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy the pages of block ``source`` to block ``target`` in every tensor, in the order of ``pairs``.

        A pair may read what an earlier pair wrote.
        """
        for batch in _independent(pairs):
            sources, targets = torch.tensor(batch, device=self.tensors[0].device).unbind(1)
            for tensor in self.tensors:
                tensor[targets] = tensor[sources]


def page_part_offsets(spec: KVCacheSpec, page_bytes: int) -> list[int]:
    """The offset in bytes of each of ``spec``'s page parts.

    Parts are viewed in place, so the offset and the page size must be multiples of the part's element size. Raises
    ValueError, naming the part, if they are not.
    """
    offsets: list[int] = []
    offset = 0
    for part in spec.page_parts():
        item_bytes = part.num_bytes // prod(part.shape)
        if offset % item_bytes or page_bytes % item_bytes:
            raise ValueError(
                f"{type(spec).__name__}: page part {part.name!r} ({part.dtype}, {item_bytes} bytes per "
                f"element) starts at byte {offset} of a page of {page_bytes} bytes; both must be multiples "
                f"of {item_bytes}. List the parts with the largest elements first, or pad the page"
            )
        offsets.append(offset)
        offset += part.num_bytes
    return offsets


def _layer_cache(pages: Tensor, spec: KVCacheSpec) -> LayerCache:
    cache: LayerCache = {}
    offsets = page_part_offsets(spec, pages.shape[1])
    for part, offset in zip(spec.page_parts(), offsets, strict=True):
        dtype: torch.dtype = getattr(torch, part.dtype)
        flat = pages[:, offset : offset + part.num_bytes].view(dtype)
        cache[part.name] = flat.view(-1, *part.shape)
    return cache


def _independent(pairs: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Split ``pairs`` into runs in which no target is a source or target of a later pair of the same run."""
    batch: list[tuple[int, int]] = []
    written: set[int] = set()
    for source, target in pairs:
        if source in written or target in written:
            yield batch
            batch, written = [], set()
        batch.append((source, target))
        written.add(target)
    if batch:
        yield batch
