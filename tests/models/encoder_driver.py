"""The unkind cache manager of `paged_driver`, for models with an encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kvhybrid.models.base import EncoderBatch, EncoderInput, GroupBatch
from kvhybrid.specs import KVCacheSpec
from tests.models.paged_driver import PagedDriver, Running


class EncoderDriver(PagedDriver):
    """`encode` comes before a sequence's first tokens. The encoder's blocks stay until it is finished."""

    def encode(self, given: Mapping[str, Any]) -> None:
        """Run the encoder for these sequences, all in one batch."""
        inputs = {name: self.model.read_encoder_input(found) for name, found in given.items()}
        for name, read in inputs.items():
            self.encoder_lens[name] = read.num_tokens
            tables = self.sequences.setdefault(name, Running(tables=[[] for _ in self.groups])).tables
            for index, spec in self._cross_groups():
                assert not tables[index]
                tables[index] = [self.free.pop() for _ in range(-(-read.num_tokens // spec.block_size))]
        groups = {
            layer: group
            for index, spec in self._cross_groups()
            for group in [self._encoder_group(spec.block_size, index, inputs)]
            for layer in self.groups[spec]
        }
        self.model.encode(EncoderBatch(tuple(inputs.values()), groups))

    def _cross_groups(self) -> list[tuple[int, KVCacheSpec]]:
        return [(index, spec) for index, spec in enumerate(self.groups) if spec.source == "encoder"]

    def _encoder_group(self, block_size: int, index: int, inputs: Mapping[str, EncoderInput]) -> GroupBatch:
        tables = [self.sequences[name].tables[index] for name in inputs]
        slots = [
            table[j // block_size] * block_size + j % block_size
            for table, read in zip(tables, inputs.values(), strict=True)
            for j in range(read.num_tokens)
        ]
        return GroupBatch(block_size, _padded(tables), torch.tensor(slots))

    def _cover(self, spec: KVCacheSpec, table: list[int], n: int, m: int) -> None:
        if spec.source == "decoder":
            super()._cover(spec, table, n, m)

    def _live_blocks(self, spec: KVCacheSpec, table: list[int], num_tokens: int) -> set[int]:
        if spec.source == "encoder":
            return set(range(len(table)))
        return super()._live_blocks(spec, table, num_tokens)

    def _group(self, block_size: int, index: int, chunks: Mapping[str, Sequence[int]]) -> GroupBatch:
        if index not in dict(self._cross_groups()):
            return super()._group(block_size, index, chunks)
        tables = [self.sequences[name].tables[index] for name in chunks]
        return GroupBatch(block_size, _padded(tables), torch.zeros(0, dtype=torch.int64))


def _padded(tables: list[list[int]]) -> torch.Tensor:
    width = max(map(len, tables))
    return torch.tensor([table + [0] * (width - len(table)) for table in tables])
