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
    """The memory of a plan, ``plan.memory_bytes`` in total.

    If all groups share one pool, layer i of every group uses tensor i, and a block id refers to one page in every
    tensor, so a block can belong to any group. With a pool for each kind, a block id refers to one page of each
    layer of that kind: in tensors of its own, or in a part of a large page. A layer accesses its pages through
    `views`, which share the pool's memory and skip padding, and other layers' pages, by stride.
    """

    def __init__(self, plan: CachePlan, device: torch.device | str = "cpu") -> None:
        self._plan = plan
        # Zeros and not garbage, since a kernel may read the null block with weight 0, and 0 · NaN is NaN.
        self.tensors = tuple(
            torch.zeros((rows, row_bytes), dtype=torch.uint8, device=device)
            for rows, row_bytes in plan.division.tensors
        )
        """uint8 ``[rows, row_bytes]``, as planned."""
        self._blocks = [self._blocks_of(kind) for kind in self._kinds()]
        """Per pool, its blocks as ``[num_blocks, num_bytes]``: a view of each tensor that has a part of them."""

    def _kinds(self) -> list[tuple[int, ...]]:
        """The groups of each pool."""
        config = self._plan.config
        return [tuple(range(len(config.groups)))] if config.pools is None else list(config.lockstep())

    def _blocks_of(self, groups: tuple[int, ...]) -> list[Tensor]:
        """The parts of a pool's blocks: the layers in one tensor are one part."""
        if self._plan.config.pools is None:
            return list(self.tensors)
        layers = [layer for g in groups for layer in self._plan.config.groups[g].layers]
        places = [self._plan.division.places[layer] for layer in layers]
        return [
            self.tensors[tensor].view(-1, stride)
            for tensor, stride in dict.fromkeys((place.tensor, place.stride) for place in places)
        ]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def views(self) -> dict[str, LayerCache]:
        """Every layer's page parts as ``[num_blocks, *part.shape]``, sharing the pool's memory.

        Raises ValueError if a spec's parts cannot be viewed in place; see `page_part_offsets`.
        """
        return {
            layer: _layer_cache(self.tensors[place.tensor].view(-1, place.stride), place.offset, spec)
            for layer, spec in self._plan.layer_specs.items()
            for place in (self._plan.division.places[layer],)
        }

    def copy_blocks(self, pairs: Sequence[tuple[int, int]], pool: int = 0) -> None:
        """Copy the pages of block ``source`` of ``pool`` to block ``target``, in the order of ``pairs``.

        A pair may read what an earlier pair wrote.
        """
        for batch in _independent(pairs):
            sources, targets = torch.tensor(batch, device=self.tensors[0].device).unbind(1)
            for blocks in self._blocks[pool]:
                blocks[targets] = blocks[sources]


def page_part_offsets(spec: KVCacheSpec, page_bytes: int, start: int = 0) -> list[int]:
    """The offset in bytes of each of ``spec``'s page parts, the first at ``start``.

    Parts are viewed in place, so the offset and the page size must be multiples of the part's element size. Raises
    ValueError, naming the part, if they are not.
    """
    offsets: list[int] = []
    offset = start
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


def _layer_cache(pages: Tensor, start: int, spec: KVCacheSpec) -> LayerCache:
    """The parts of a layer's page, which starts at byte ``start`` of each row of ``pages``."""
    cache: LayerCache = {}
    offsets = page_part_offsets(spec, pages.shape[1], start)
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
