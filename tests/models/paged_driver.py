"""Drives a model over a byte pool as an unkind cache manager would.

All layers share the pages, block ids are shuffled, a block without an owner holds NaN in every element, and a
block is taken away, and its table entry nulled, as soon as the layer's spec calls it dead.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kvhybrid.models.base import ForwardBatch, GroupBatch, HybridModel, LayerCache
from kvhybrid.specs import KVCacheSpec

GARBAGE = 0xFF
"""A byte that makes every floating-point type a NaN."""


@dataclass
class Running:
    num_tokens: int = 0
    tables: list[list[int]] = field(default_factory=list)


class PagedDriver:
    def __init__(
        self,
        model: HybridModel,
        *,
        block_size: int = 4,
        state_block_size: int | None = None,
        num_blocks: int = 400,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model = model
        self.random = random.Random(seed)
        specs = model.layer_specs(block_size, dtype)
        if state_block_size:
            specs = {
                name: replace(spec, block_size=state_block_size) if spec.state else spec
                for name, spec in specs.items()
            }
        self.groups: dict[KVCacheSpec, list[str]] = {}
        for name, spec in specs.items():
            self.groups.setdefault(spec, []).append(name)
        page_bytes = -(-max(spec.page_bytes for spec in self.groups) // 16) * 16 + 32
        num_tensors = max(len(layers) for layers in self.groups.values())
        self.tensors = [
            torch.full((num_blocks, page_bytes), GARBAGE, dtype=torch.uint8) for _ in range(num_tensors)
        ]
        self.free = list(range(1, num_blocks))
        self.random.shuffle(self.free)
        self.sequences: dict[str, Running] = {}
        self.encoder_lens: dict[str, int] = {}
        model.bind_cache(
            {
                name: _views(spec, self.tensors[i])
                for spec, layers in self.groups.items()
                for i, name in enumerate(layers)
            }
        )

    def step(self, chunks: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
        """Run each sequence's new tokens in one batch; the logits of every one of them."""
        starts, contexts, positions = [0], [], []
        for name, tokens in chunks.items():
            sequence = self.sequences.setdefault(name, Running(tables=[[] for _ in self.groups]))
            n, m = sequence.num_tokens, sequence.num_tokens + len(tokens)
            for spec, table in zip(self.groups, sequence.tables, strict=True):
                self._cover(spec, table, n, m)
            contexts.append(n)
            starts.append(starts[-1] + len(tokens))
            positions.extend(range(n, m))
        group_of_layer = {
            layer: group
            for index, (spec, layers) in enumerate(self.groups.items())
            for group in [self._group(spec.block_size, index, chunks)]
            for layer in layers
        }
        logits = self.model(
            ForwardBatch(
                token_ids_T=torch.tensor([token for tokens in chunks.values() for token in tokens]),
                positions_T=torch.tensor(positions),
                query_starts=tuple(starts),
                context_lens=tuple(contexts),
                logit_rows=torch.arange(starts[-1]),
                group_of_layer=group_of_layer,
                encoder_lens=tuple(self.encoder_lens[name] for name in chunks if name in self.encoder_lens),
            )
        )
        for name, tokens in chunks.items():
            self._advance(self.sequences[name], len(tokens))
        return dict(zip(chunks, logits.split([len(tokens) for tokens in chunks.values()]), strict=True))

    def finish(self, name: str) -> None:
        for table in self.sequences.pop(name).tables:
            self._release([block for block in table if block])

    def _cover(self, spec: KVCacheSpec, table: list[int], n: int, m: int) -> None:
        last = (m - 1) // spec.block_size
        table.extend([0] * (last + 1 - len(table)))
        for j in [last] if spec.state else range(n // spec.block_size, last + 1):
            if not table[j]:
                table[j] = self.free.pop()

    def _advance(self, sequence: Running, num_new: int) -> None:
        sequence.num_tokens += num_new
        for spec, table in zip(self.groups, sequence.tables, strict=True):
            live = self._live_blocks(spec, table, sequence.num_tokens)
            dead = [j for j, block in enumerate(table) if block and j not in live]
            self._release([table[j] for j in dead])
            for j in dead:
                table[j] = 0

    def _live_blocks(self, spec: KVCacheSpec, table: list[int], num_tokens: int) -> set[int]:
        return {j for blocks in spec.live_blocks(num_tokens) for j in blocks}

    def _release(self, blocks: list[int]) -> None:
        for tensor in self.tensors:
            tensor[blocks] = GARBAGE
        self.free.extend(blocks)
        self.random.shuffle(self.free)

    def _group(self, block_size: int, index: int, chunks: Mapping[str, Sequence[int]]) -> GroupBatch:
        tables = [self.sequences[name].tables[index] for name in chunks]
        width = max(len(table) for table in tables)
        slots = [
            table[p // block_size] * block_size + p % block_size
            for (name, tokens), table in zip(chunks.items(), tables, strict=True)
            for n in [self.sequences[name].num_tokens]
            for p in range(n, n + len(tokens))
        ]
        return GroupBatch(
            block_size=block_size,
            block_table_SN=torch.tensor([table + [0] * (width - len(table)) for table in tables]),
            slot_mapping_T=torch.tensor(slots),
        )


def run_ragged(
    driver: PagedDriver, prompts: Mapping[str, Sequence[int]], chunk_lengths: Sequence[int]
) -> dict[str, Tensor]:
    """Every prompt to its end in chunks of random lengths, joining the batch at random; all logits."""
    done: dict[str, list[Tensor]] = {name: [] for name in prompts}
    at = dict.fromkeys(prompts, 0)
    while unfinished := [name for name in prompts if at[name] < len(prompts[name])]:
        chosen = [name for name in unfinished if driver.random.random() < 0.8] or unfinished
        driver.random.shuffle(chosen)
        chunks = {
            name: prompts[name][at[name] : at[name] + driver.random.choice(chunk_lengths)] for name in chosen
        }
        for name, logits in driver.step(chunks).items():
            done[name].append(logits)
            at[name] += len(chunks[name])
    return {name: torch.cat(logits) for name, logits in done.items()}


def run_greedily(
    driver: PagedDriver, prompts: Mapping[str, Sequence[int]], num_tokens: int
) -> dict[str, list[int]]:
    """Prefill every prompt in one batch, then decode all of them together."""
    out: dict[str, list[int]] = {name: [] for name in prompts}
    chunks: dict[str, Sequence[int]] = dict(prompts)
    for _ in range(num_tokens):
        for name, logits in driver.step(chunks).items():
            out[name].append(int(logits[-1].argmax()))
        chunks = {name: tokens[-1:] for name, tokens in out.items()}
    return out


def _views(spec: KVCacheSpec, tensor: Tensor) -> LayerCache:
    views, offset = {}, 0
    for part in spec.page_parts():
        raw = tensor[:, offset : offset + part.num_bytes].view(getattr(torch, part.dtype))
        views[part.name] = raw.unflatten(1, part.shape)
        offset += part.num_bytes
    return views
