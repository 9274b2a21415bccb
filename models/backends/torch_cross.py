"""The reference cross-attention backend in plain torch, for any device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from kvhybrid.models.backends.cross import CrossBackend
from kvhybrid.models.backends.dense import dense_attention
from kvhybrid.models.base import ForwardBatch, GroupBatch, LayerCache

QUERIES_PER_TILE = 512
"""Bounds the size of a long prompt's scores."""


class Piece(NamedTuple):
    """Consecutive queries of one sequence."""

    sequence: int
    row: int
    """Row of the first query in the batch."""
    num_queries: int
    num_blocks: int
    """Blocks of the sequence's encoder tokens."""


@dataclass(frozen=True)
class Readers:
    """Pieces with equal numbers of queries and encoder inputs of similar length, padded to the longest."""

    rows_SQ: Tensor
    """Rows of the queries in the batch, Q for each of S pieces."""
    blocks_SN: Tensor
    visible_SL: Tensor
    """Which of the ``L = N · B`` gathered tokens are encoder tokens; the others are padding or garbage."""


class TorchCross(CrossBackend):
    """Gathers the encoder blocks of similar sequences and attends to them in one call."""

    name: ClassVar[str] = "torch"
    dtypes: ClassVar[frozenset[torch.dtype]] = frozenset({torch.float32, torch.bfloat16, torch.float16})
    soft_caps: ClassVar[bool] = True

    def plan(self, batch: ForwardBatch, group: GroupBatch) -> tuple[Readers, ...]:
        pieces = [
            Piece(s, row, min(QUERIES_PER_TILE, stop - row), -(-batch.encoder_lens[s] // group.block_size))
            for s, (start, stop) in enumerate(pairwise(batch.query_starts))
            for row in range(start, stop, QUERIES_PER_TILE)
        ]
        return tuple(_readers(batch, group, part) for part in _alike(pieces))

    def attend(self, q_THD: Tensor, cache: LayerCache, plan: tuple[Readers, ...]) -> Tensor:
        keys_PBKD, values_PBKD = cache["k"], cache["v"]
        out_THD = q_THD.new_empty(*q_THD.shape[:2], values_PBKD.shape[-1])
        kv_heads, shared = self.need.num_kv_heads, self.need.num_heads // self.need.num_kv_heads
        for readers in plan:
            num_seqs, num_queries = readers.rows_SQ.shape
            rows_U = readers.rows_SQ.flatten()
            # Query heads that share a key head are put on the query axis.
            q_SKUD = (
                q_THD[rows_U]
                .view(num_seqs, num_queries, kv_heads, shared, -1)
                .permute(0, 2, 3, 1, 4)
                .flatten(2, 3)
            )
            hidden_SL11 = ~readers.visible_SL[:, :, None, None]
            # Garbage may be NaN, which a weight of zero does not cancel, so it is overwritten.
            k_SKLD, v_SKLD = (
                pages[readers.blocks_SN]
                .flatten(1, 2)
                .to(q_THD.dtype)
                .masked_fill_(hidden_SL11, 0.0)
                .transpose(1, 2)
                for pages in (keys_PBKD, values_PBKD)
            )
            read_SKUD = dense_attention(
                q_SKUD,
                k_SKLD,
                v_SKLD,
                scale=self.need.scale,
                soft_cap=self.need.soft_cap,
                mask=readers.visible_SL[:, None, None],
            )
            read_SQKGD = read_SKUD.view(num_seqs, kv_heads, shared, num_queries, -1).permute(0, 3, 1, 2, 4)
            out_THD[rows_U] = read_SQKGD.flatten(2, 3).flatten(0, 1)
        return out_THD


def _alike(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Groups of pieces with equal numbers of queries, such that padding a group to its longest encoder input at
    most doubles the gathered blocks."""
    part: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: (piece.num_queries, piece.num_blocks)):
        if part and (piece.num_queries != part[0].num_queries or piece.num_blocks > 2 * part[0].num_blocks):
            yield part
            part = []
        part.append(piece)
    if part:
        yield part


def _readers(batch: ForwardBatch, group: GroupBatch, pieces: Sequence[Piece]) -> Readers:
    device = group.block_table_SN.device
    longest = pieces[-1].num_blocks
    sequence_S, row_S, length_S = torch.tensor(
        [(piece.sequence, piece.row, batch.encoder_lens[piece.sequence]) for piece in pieces], device=device
    ).unbind(1)
    return Readers(
        rows_SQ=row_S[:, None] + torch.arange(pieces[0].num_queries, device=device),
        blocks_SN=group.block_table_SN[sequence_S, :longest],
        visible_SL=torch.arange(longest * group.block_size, device=device) < length_S[:, None],
    )
