"""Batches for paged attention backends: prompts, decoding and both, over strided pages full of NaN."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kvhybrid.models.backends.base import AttentionNeed
from kvhybrid.models.backends.visibility import Visibility
from kvhybrid.models.base import ForwardBatch, GroupBatch, LayerCache

HEADS, KV_HEADS, HEAD_SIZE = 4, 2, 16
BATCHES = {
    "decode": ((0, 255, 256, 300, 700), (1, 1, 1, 1, 1)),
    "prompts": ((0, 0, 0), (2, 256, 530)),
    "chunked prompts": ((255, 256, 511), (3, 300, 257)),
    "mixed": ((600, 0, 256, 511, 40), (1, 20, 1, 300, 700)),
}
VISIBILITIES = {
    "full": Visibility(),
    "window of 1": Visibility(window=1),
    "window of 40": Visibility(window=40),
    "window of 300": Visibility(window=300),
    "chunks": Visibility(chunk=768),
    "chunks and a window": Visibility(chunk=768, window=200),
}


def need(visibility: Visibility, **more: Any) -> AttentionNeed:
    return replace(AttentionNeed("layers.7", HEADS, KV_HEADS, HEAD_SIZE, 0.4, visibility), **more)


@dataclass
class Scene:
    """One batch over two caches of the same content: strided half pages full of NaN, and plain float32 ones."""

    batch: ForwardBatch
    group: GroupBatch
    q: Tensor
    k: Tensor
    v: Tensor
    halves: LayerCache
    floats: LayerCache


def scene(
    visibility: Visibility,
    contexts: tuple[int, ...],
    lengths: tuple[int, ...],
    block_size: int,
    device: torch.device | str = "cpu",
) -> Scene:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).half()

    ends = [context + length for context, length in zip(contexts, lengths, strict=True)]
    width = -(-max(ends) // block_size)
    table_SN = (torch.randperm(len(ends) * width, generator=generator) + 1).view(-1, width)
    halves = strided_pages(len(ends) * width + 1, block_size)
    slots, ks, vs = [], [], []
    for s, (context, end) in enumerate(zip(contexts, ends, strict=True)):
        k, v, positions = normal(end, KV_HEADS, HEAD_SIZE), normal(end, KV_HEADS, HEAD_SIZE), torch.arange(end)
        blocks, offsets = table_SN[s, positions // block_size], positions % block_size
        # A block is kept whole as long as one of its tokens is live, as a cache manager keeps it.
        first = min(seen.start for seen in visibility.ranges(context, context + 1)) // block_size * block_size
        kept = slice(first, context)
        if context % block_size:  # the batch that began a block has left its rest clean
            halves["k"][blocks[context - 1]], halves["v"][blocks[context - 1]] = 0.0, 0.0
        halves["k"][blocks[kept], offsets[kept]], halves["v"][blocks[kept], offsets[kept]] = k[kept], v[kept]
        table_SN[s, : first // block_size] = 0
        slots.append((blocks * block_size + offsets)[context:])
        ks.append(k[context:])
        vs.append(v[context:])
    halves = {name: strided_copy(pages, device) for name, pages in halves.items()}
    floats = {name: pages.float() for name, pages in halves.items()}
    starts = tuple(torch.tensor([0, *lengths]).cumsum(0).tolist())
    return Scene(
        batch=ForwardBatch(torch.zeros(0), torch.zeros(0), starts, contexts, torch.zeros(0), {}),
        group=GroupBatch(block_size, table_SN.to(device), torch.cat(slots).to(device)),
        q=(normal(starts[-1], HEADS, HEAD_SIZE) * 2).to(device),
        k=torch.cat(ks).to(device),
        v=torch.cat(vs).to(device),
        halves=halves,
        floats=floats,
    )


def strided_pages(num_blocks: int, block_size: int) -> LayerCache:
    """Keys and values in one page, padded, every element NaN, as in the byte pool."""
    part = block_size * KV_HEADS * HEAD_SIZE * 2
    raw = torch.full((num_blocks, 2 * part + 48), 0xFF, dtype=torch.uint8)
    shape = (block_size, KV_HEADS, HEAD_SIZE)
    return {
        name: raw[:, offset : offset + part].view(torch.float16).unflatten(1, shape)
        for name, offset in (("k", 0), ("v", part))
    }


def strided_copy(pages: Tensor, device: torch.device | str) -> Tensor:
    """``pages`` on ``device``, as far apart as they were."""
    there = torch.empty_strided(pages.shape, pages.stride(), dtype=pages.dtype, device=device)
    return there.copy_(pages)
