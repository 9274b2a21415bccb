"""Attention over a window and landmarks, in plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from kvhybrid.models.backends.base import AttentionBackend
from kvhybrid.models.backends.visibility import Visibility
from kvhybrid.models.base import ForwardBatch, GroupBatch, LayerCache


@dataclass(frozen=True)
class LandmarkVisibility(Visibility):
    """A query sees its window, and the first ``landmark`` of every ``stride`` keys up to itself."""

    landmark: int = 1
    stride: int = 2

    def mask(self, queries: Tensor, keys: Tensor) -> Tensor:
        return super().mask(queries, keys) | ((keys <= queries) & (keys % self.stride < self.landmark))


@dataclass(frozen=True)
class Reads:
    """What the new tokens of one sequence read: ``L`` keys that some of its ``Q`` queries sees."""

    rows: slice
    blocks_L: Tensor
    offsets_L: Tensor
    mask_QL: Tensor


@dataclass(frozen=True)
class Plan:
    blocks_T: Tensor
    offsets_T: Tensor
    reads: tuple[Reads, ...]


class LandmarkBackend(AttentionBackend):
    """Gathers exactly the visible keys, sequence by sequence: clear rather than fast."""

    name: ClassVar[str] = "landmark"
    dtypes: ClassVar[frozenset[torch.dtype]] = frozenset({torch.float32, torch.bfloat16, torch.float16})
    windows: ClassVar[bool] = True

    def plan(self, batch: ForwardBatch, group: GroupBatch) -> Plan:
        spans = zip(pairwise(batch.query_starts), batch.context_lens, strict=True)
        return Plan(
            group.slot_mapping_T // group.block_size,
            group.slot_mapping_T % group.block_size,
            tuple(self._reads(group, s, start, stop, context) for s, ((start, stop), context) in enumerate(spans)),
        )

    def _reads(self, group: GroupBatch, s: int, start: int, stop: int, context: int) -> Reads:
        positions = torch.arange(context + stop - start, device=group.block_table_SN.device)
        mask_QP = self.need.visibility.mask(positions[context:, None], positions)
        seen_L = mask_QP.any(0).nonzero().squeeze(1)
        blocks_L = group.block_table_SN[s, seen_L // group.block_size]
        return Reads(slice(start, stop), blocks_L, seen_L % group.block_size, mask_QP[:, seen_L])

    def attend(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, cache: LayerCache, plan: Plan) -> Tensor:
        cache["k"][plan.blocks_T, plan.offsets_T] = k_TKD.to(cache["k"].dtype)
        cache["v"][plan.blocks_T, plan.offsets_T] = v_TKD.to(cache["v"].dtype)
        shared = self.need.num_heads // self.need.num_kv_heads
        out_THD = torch.empty_like(q_THD)
        for reads in plan.reads:
            k_HLD, v_HLD = (
                cache[part][reads.blocks_L, reads.offsets_L]
                .to(q_THD.dtype)
                .repeat_interleave(shared, dim=1)
                .transpose(0, 1)
                for part in ("k", "v")
            )
            q_HQD = q_THD[reads.rows].transpose(0, 1)
            read_HQD = functional.scaled_dot_product_attention(
                q_HQD, k_HLD, v_HLD, attn_mask=reads.mask_QL, scale=self.need.scale
            )
            out_THD[reads.rows] = read_HQD.transpose(0, 1)
        return out_THD
