"""Base class for the kernels of the FlashAttention family, which read pages through a block table.

Such a kernel takes concatenated queries and, for each run of queries, a row of page numbers and a number of keys.
Its causal mask is aligned to the end: the last query of a run sees the last key.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import ClassVar

import torch
from torch import Tensor

from kvhybrid.models.backends.base import AttentionBackend, AttentionNeed
from kvhybrid.models.backends.visibility import Visibility
from kvhybrid.models.base import ForwardBatch, GroupBatch, LayerCache


@dataclass(frozen=True)
class Run:
    """Queries of one sequence, and the keys that they see, starting at a block boundary."""

    sequence: int
    rows: range
    first_block: int
    num_keys: int
    """Includes the key of the last query, which is the last one."""


@dataclass(frozen=True)
class Part:
    """Runs that go into one call. All tensors are int32 and contiguous, as the kernels require."""

    rows_T: Tensor | slice
    """Rows of the queries in the batch, in the order of the runs."""
    query_starts: Tensor
    """S + 1 offsets into the queries."""
    key_starts: Tensor
    """S + 1 cumulative numbers of keys."""
    num_keys_S: Tensor
    table_SN: Tensor
    max_queries: int
    max_keys: int


@dataclass(frozen=True)
class Plan:
    blocks_T: Tensor
    offsets_T: Tensor
    begun: Tensor
    """Blocks that get their first token in this batch and are not filled by it."""
    parts: tuple[Part, ...]


class PagedAttention(AttentionBackend):
    """Prepares the arguments; a subclass calls the kernel.

    With chunked attention, each chunk is a separate run, so that only the causal mask is needed; chunks must start
    at block boundaries. Sink logits are applied to the output: ``out · σ(lse − sink)``.
    """

    dtypes: ClassVar[frozenset[torch.dtype]] = frozenset({torch.bfloat16, torch.float16})
    devices: ClassVar[frozenset[str] | None] = frozenset({"cuda"})
    alignment: ClassVar[int] = 16
    head_multiple: ClassVar[int] = 8
    max_head_size: ClassVar[int | None] = 256
    windows: ClassVar[bool] = True
    chunks: ClassVar[bool] = True
    sink_logits: ClassVar[bool] = True
    shared_caches: ClassVar[bool] = True
    decode_apart: ClassVar[bool] = False
    """Whether runs of one query go into a separate call."""

    @classmethod
    def unusable(cls, need: AttentionNeed, cache: LayerCache) -> str | None:
        reason = super().unusable(need, cache)
        chunk, block_size = need.visibility.chunk, cache["k"].shape[1]
        if reason is None and chunk is not None and chunk % block_size:
            return f"needs chunks that start a block: {chunk} tokens are not a multiple of blocks of {block_size}"
        return reason

    def plan(self, batch: ForwardBatch, group: GroupBatch) -> Plan:
        runs = _runs(self.need.visibility, batch, group.block_size)
        kinds = [runs]
        if self.decode_apart:
            kinds = [[run for run in runs if (len(run.rows) == 1) is single] for single in (True, False)]
        return Plan(
            blocks_T=group.slot_mapping_T // group.block_size,
            offsets_T=group.slot_mapping_T % group.block_size,
            begun=_begun(batch, group),
            parts=tuple(_part(kind, group, batch.query_starts[-1]) for kind in kinds if kind),
        )

    def attend(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, cache: LayerCache, plan: Plan) -> Tensor:
        self._write(k_TKD, v_TKD, cache, plan)
        return self._read(q_THD, None, cache, plan)

    def attend_with_sinks(
        self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, sinks_H: Tensor, cache: LayerCache, plan: Plan
    ) -> Tensor:
        self._write(k_TKD, v_TKD, cache, plan)
        return self._read(q_THD, sinks_H, cache, plan)

    def read(self, q_THD: Tensor, cache: LayerCache, plan: Plan) -> Tensor:
        return self._read(q_THD, None, cache, plan)

    @abstractmethod
    def call(
        self, q_THD: Tensor, cache: LayerCache, part: Part, *, with_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        """``out_THD`` and, if requested, ``lse_HT``: the logarithm of each softmax's denominator."""

    def _write(self, k_TKD: Tensor, v_TKD: Tensor, cache: LayerCache, plan: Plan) -> None:
        # Kernels load whole tiles and give slots after the last token weight 0. In a reused page, these slots may
        # hold other data, e.g. a float32 state, that reads as NaN, and 0 · NaN is NaN.
        for name, new_TKD in (("k", k_TKD), ("v", v_TKD)):
            pages_PBKD = cache[name]
            pages_PBKD[plan.begun] = 0.0
            pages_PBKD[plan.blocks_T, plan.offsets_T] = new_TKD.to(pages_PBKD.dtype)

    def _read(self, q_THD: Tensor, sinks_H: Tensor | None, cache: LayerCache, plan: Plan) -> Tensor:
        out_THD = q_THD.new_empty(*q_THD.shape[:2], cache["v"].shape[-1])
        for part in plan.parts:
            read_THD = self._read_part(q_THD[part.rows_T].to(cache["k"].dtype), sinks_H, cache, part)
            out_THD[part.rows_T] = read_THD.to(q_THD.dtype)
        return out_THD

    def _read_part(self, q_THD: Tensor, sinks_H: Tensor | None, cache: LayerCache, part: Part) -> Tensor:
        read_THD, lse_HT = self.call(q_THD, cache, part, with_lse=sinks_H is not None)
        if sinks_H is None or lse_HT is None:
            return read_THD
        share_TH = torch.sigmoid(lse_HT.t() - sinks_H.float())
        return read_THD * share_TH[:, :, None]


def _runs(visibility: Visibility, batch: ForwardBatch, block_size: int) -> list[Run]:
    runs = []
    for s, ((row, end_row), context) in enumerate(
        zip(pairwise(batch.query_starts), batch.context_lens, strict=True)
    ):
        end, chunk = context + end_row - row, visibility.chunk
        cuts = [] if chunk is None else range((context // chunk + 1) * chunk, end, chunk)
        for start, stop in pairwise([context, *cuts, end]):
            first_block = visibility.first(start) // block_size
            rows = range(row + start - context, row + stop - context)
            runs.append(Run(s, rows, first_block, stop - first_block * block_size))
    return runs


def _part(runs: Sequence[Run], group: GroupBatch, num_rows: int) -> Part:
    device, size = group.block_table_SN.device, group.block_size

    def int32(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    queries, keys = [len(run.rows) for run in runs], [run.num_keys for run in runs]
    s_S, first_S, counts_S = (
        torch.tensor(values, device=device)[:, None]
        for values in (
            [run.sequence for run in runs],
            [run.first_block for run in runs],
            [-(-run.num_keys // size) for run in runs],
        )
    )
    j_N = torch.arange(-(-max(keys) // size), device=device)
    columns_SN = (first_S + j_N).clamp(max=group.block_table_SN.shape[1] - 1)
    table_SN = torch.where(j_N < counts_S, group.block_table_SN[s_S, columns_SN], 0)
    rows = [row for run in runs for row in run.rows] if sum(queries) < num_rows else None
    return Part(
        rows_T=slice(None) if rows is None else torch.tensor(rows, device=device),
        query_starts=int32([0, *accumulate(queries)]),
        key_starts=int32([0, *accumulate(keys)]),
        num_keys_S=int32(keys),
        table_SN=table_SN.to(torch.int32).contiguous(),
        max_queries=max(queries),
        max_keys=max(keys),
    )


def _begun(batch: ForwardBatch, group: GroupBatch) -> Tensor:
    """The last block of every sequence that starts its last block in this batch without filling it."""
    size, rows, columns = group.block_size, [], []
    for s, (context, (row, end_row)) in enumerate(
        zip(batch.context_lens, pairwise(batch.query_starts), strict=True)
    ):
        end = context + end_row - row
        if end % size and end // size * size >= context:
            rows.append(s)
            columns.append(end // size)
    index = torch.tensor([rows, columns], dtype=torch.int64, device=group.block_table_SN.device)
    return group.block_table_SN[index[0], index[1]]
