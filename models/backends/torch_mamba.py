"""The reference Mamba-1 backend in plain torch, for any device."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import isqrt
from typing import ClassVar

import torch
from torch import Tensor

from kvhybrid.models.backends.base import MambaBackend
from kvhybrid.models.base import ForwardBatch, GroupBatch, LayerCache

MAX_LANES = 128
"""Chunks scanned in parallel in addition to one per sequence; bounds the memory of a step."""


@dataclass(frozen=True)
class Chunks:
    """The sequences of more than one token, split into chunks that are scanned in parallel, step by step.

    J steps (the longest chunk), Z chunks; the chunks of a sequence are consecutive.
    """

    sequences: Tensor
    """The S' sequences that are split."""
    rows_JZ: Tensor
    """Row in the batch at each step; a chunk that has ended repeats its last row."""
    active_X: Tensor
    """Which of the J · Z entries, step by step, belong to chunks that have not ended …"""
    ended_X: Tensor
    """… and which to those that have."""
    first_chunks: Tensor
    last_chunks: Tensor
    followers: tuple[Tensor, ...]
    """The second chunk of every sequence, the third, …: each continues from the state of the previous one."""


@dataclass(frozen=True)
class Plan:
    source_S: Tensor
    target_S: Tensor
    fresh_S: Tensor
    """Whether each sequence is new; the source pages of new sequences are garbage."""
    tokens_T: Tensor
    """Index of each token in an order in which every sequence is preceded by its conv state."""
    before_SW: Tensor
    """Indices of a sequence's initial conv state in that order, W − 1 inputs."""
    after_SW: Tensor
    """Indices of its final conv state."""
    single_sequences: Tensor
    single_rows: Tensor
    chunks: Chunks | None


class TorchMamba(MambaBackend):
    """Sequences of one token advance together. Longer ones are split into about √n chunks of √n tokens.

    All chunks are scanned in parallel from a zero state, the true states are passed from chunk to chunk, and all
    chunks are scanned again from these. Only decays, never their inverses, are computed, so nothing overflows, and
    a decay that underflows is zero.
    """

    name: ClassVar[str] = "torch"
    dtypes: ClassVar[frozenset[torch.dtype]] = frozenset({torch.float32, torch.bfloat16, torch.float16})

    def plan(self, batch: ForwardBatch, group: GroupBatch) -> Plan:
        table_SN, size = group.block_table_SN, group.block_size
        device = table_SN.device
        starts = torch.tensor(batch.query_starts, device=device)
        contexts_S = torch.tensor(batch.context_lens, device=device)
        lengths_S = starts[1:] - starts[:-1]
        s_S = torch.arange(batch.num_seqs, device=device)
        kept = self.need.conv_width - 1
        sequence_T = torch.repeat_interleave(s_S, lengths_S)
        before_S = starts[:-1] + kept * s_S
        w_W = torch.arange(kept, device=device)
        single_S = lengths_S == 1
        return Plan(
            source_S=table_SN[s_S, (contexts_S - 1).clamp(min=0) // size],
            target_S=table_SN[s_S, (contexts_S + lengths_S - 1) // size],
            fresh_S=contexts_S == 0,
            tokens_T=torch.arange(sequence_T.numel(), device=device) + kept * (sequence_T + 1),
            before_SW=before_S[:, None] + w_W,
            after_SW=(before_S + lengths_S)[:, None] + w_W,
            single_sequences=s_S[single_S],
            single_rows=starts[:-1][single_S],
            chunks=_chunks(batch.query_starts, device),
        )

    def convolve(
        self, x_TC: Tensor, weight_CW: Tensor, bias_C: Tensor | None, cache: LayerCache, plan: Plan
    ) -> Tensor:
        pages_PCW = cache["conv"]
        state_SCW = _read(pages_PCW, plan).to(x_TC.dtype)
        inputs = x_TC.new_empty(plan.before_SW.numel() + len(x_TC), x_TC.shape[1])
        inputs.index_copy_(0, plan.tokens_T, x_TC)
        inputs[plan.before_SW] = state_SCW.transpose(1, 2)
        width = weight_CW.shape[1]
        out_TC = x_TC.float() * weight_CW[:, -1].float()
        for w in range(width - 1):
            earlier_TC = inputs.index_select(0, plan.tokens_T - (width - 1 - w))
            out_TC.addcmul_(earlier_TC.float(), weight_CW[:, w].float())
        if bias_C is not None:
            out_TC += bias_C.float()
        pages_PCW[plan.target_S] = inputs[plan.after_SW].transpose(1, 2).to(pages_PCW.dtype)
        return out_TC.to(x_TC.dtype)

    def scan(
        self,
        x_TC: Tensor,
        dt_TC: Tensor,
        A_CR: Tensor,
        B_TR: Tensor,
        C_TR: Tensor,
        cache: LayerCache,
        plan: Plan,
    ) -> Tensor:
        pages_PCR = cache["ssm"]
        state_SCR = _read(pages_PCR, plan).float()
        dt_TC, A_CR, B_TR, C_TR = dt_TC.float(), A_CR.float(), B_TR.float(), C_TR.float()
        dtx_TC = dt_TC * x_TC.float()
        y_TC = torch.empty_like(dtx_TC)
        if len(plan.single_rows):
            rows = plan.single_rows
            h = state_SCR.index_select(0, plan.single_sequences)
            dt, dtx, B, C = (x.index_select(0, rows) for x in (dt_TC, dtx_TC, B_TR, C_TR))
            _advance(h, dt, dtx, A_CR, B, torch.empty_like(h))
            y_TC[rows] = _read_out(h, C)
            state_SCR[plan.single_sequences] = h
        if plan.chunks is not None:
            _scan_chunks(plan.chunks, dt_TC, dtx_TC, A_CR, B_TR, C_TR, state_SCR, y_TC)
        pages_PCR[plan.target_S] = state_SCR.to(pages_PCR.dtype)
        return y_TC


def _read(pages: Tensor, plan: Plan) -> Tensor:
    """The initial states of the sequences, copied before any is overwritten."""
    state = pages.index_select(0, plan.source_S)
    return state.masked_fill_(plan.fresh_S.view(-1, *[1] * (state.dim() - 1)), 0.0)


def _advance(h_ZCR: Tensor, dt_ZC: Tensor, dtx_ZC: Tensor, A_CR: Tensor, B_ZR: Tensor, decay_ZCR: Tensor) -> None:
    """Advance every lane by one token, in place. ``decay_ZCR`` is a buffer for the decays: allocating one at every
    step would cost more than the arithmetic."""
    torch.mul(dt_ZC[:, :, None], A_CR, out=decay_ZCR).exp_()
    h_ZCR.mul_(decay_ZCR).addcmul_(dtx_ZC[:, :, None], B_ZR[:, None, :])


def _read_out(h_ZCR: Tensor, C_ZR: Tensor) -> Tensor:
    return torch.bmm(h_ZCR, C_ZR[:, :, None]).squeeze(2)


def _scan_chunks(
    chunks: Chunks,
    dt_TC: Tensor,
    dtx_TC: Tensor,
    A_CR: Tensor,
    B_TR: Tensor,
    C_TR: Tensor,
    state_SCR: Tensor,
    y_TC: Tensor,
) -> None:
    """Fill the rows of ``y_TC`` and the sequences of ``state_SCR`` that ``chunks`` covers."""
    shape_JZ, rows_X = chunks.rows_JZ.shape, chunks.rows_JZ.flatten()
    dt_JZC, dtx_JZC, B_JZR, C_JZR = (
        x.index_select(0, rows_X).view(*shape_JZ, -1) for x in (dt_TC, dtx_TC, B_TR, C_TR)
    )
    # A step of zero length does not change the state: it pads chunks that have ended.
    for x_JZC in (dt_JZC, dtx_JZC):
        x_JZC.flatten(0, 1).index_fill_(0, chunks.ended_X, 0.0)
    steps = range(shape_JZ[0])

    h_ZCR = state_SCR.new_zeros(shape_JZ[1], *state_SCR.shape[1:])
    decay_ZCR = torch.empty_like(h_ZCR)
    begin_ZCR = torch.zeros_like(h_ZCR)
    begin_ZCR[chunks.first_chunks] = state_SCR[chunks.sequences]
    if chunks.followers:
        for j in steps:
            _advance(h_ZCR, dt_JZC[j], dtx_JZC[j], A_CR, B_JZR[j], decay_ZCR)
        length_ZC = dt_JZC.sum(0)
        for chunk in chunks.followers:
            before = chunk - 1
            decay = torch.exp(length_ZC[before][:, :, None] * A_CR)
            begin_ZCR[chunk] = begin_ZCR[before] * decay + h_ZCR[before]
    y_JZC = torch.empty_like(dtx_JZC)
    h_ZCR = begin_ZCR
    for j in steps:
        _advance(h_ZCR, dt_JZC[j], dtx_JZC[j], A_CR, B_JZR[j], decay_ZCR)
        y_JZC[j] = _read_out(h_ZCR, C_JZR[j])
    y_TC[rows_X[chunks.active_X]] = y_JZC.flatten(0, 1).index_select(0, chunks.active_X)
    state_SCR[chunks.sequences] = h_ZCR[chunks.last_chunks]


def _chunks(query_starts: tuple[int, ...], device: torch.device) -> Chunks | None:
    spans = [(s, start, stop) for s, (start, stop) in enumerate(pairwise(query_starts)) if stop - start > 1]
    if not spans:
        return None
    longest = max(stop - start for _, start, stop in spans)
    total = sum(stop - start for _, start, stop in spans)
    size = max(isqrt(longest - 1) + 1, -(-total // MAX_LANES))
    if longest <= 2 * size:
        size = longest  # too short for a second scan to pay off

    begins: list[int] = []
    ends: list[int] = []
    first_chunks: list[int] = []
    followers: dict[int, list[int]] = {}
    for _, start, stop in spans:
        first_chunks.append(len(begins))
        for ordinal, begin in enumerate(range(start, stop, size)):
            if ordinal:
                followers.setdefault(ordinal, []).append(len(begins))
            begins.append(begin)
            ends.append(min(begin + size, stop))

    begins_Z, ends_Z = torch.tensor(begins, device=device), torch.tensor(ends, device=device)
    rows_JZ = begins_Z + torch.arange(size, device=device)[:, None]
    active_X = (rows_JZ < ends_Z).flatten()
    return Chunks(
        sequences=torch.tensor([s for s, _, _ in spans], device=device),
        rows_JZ=torch.minimum(rows_JZ, ends_Z - 1),
        active_X=active_X.nonzero()[:, 0],
        ended_X=(~active_X).nonzero()[:, 0],
        first_chunks=torch.tensor(first_chunks, device=device),
        last_chunks=torch.tensor([*first_chunks[1:], len(begins)], device=device) - 1,
        followers=tuple(torch.tensor(chunk, device=device) for _, chunk in sorted(followers.items())),
    )
