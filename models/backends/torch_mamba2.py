"""The reference Mamba-2 backend in plain torch, for any device with float64.

The chunked scan follows the state space duality of Dao and Gu (arXiv:2405.21060).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from kvhybrid.models.backends.base import MambaNeed
from kvhybrid.models.backends.mamba2 import Mamba2Backend, Mamba2Need
from kvhybrid.models.backends.torch_chunks import ChunkPlan, Chunks, cut
from kvhybrid.models.backends.torch_mamba import TorchMamba
from kvhybrid.models.base import ForwardBatch, GroupBatch, LayerCache


class TorchMamba2(Mamba2Backend):
    """Sequences of one token advance together in one step. Longer ones are split into chunks.

    The tokens of a chunk read each other through a masked matrix of decays, as in attention, and the chunk's
    initial state through one product. States are passed from chunk to chunk.

    A decay between two tokens is the exponential of a difference of sums, never a quotient of exponentials, so
    nothing overflows. The sums are float64, since float32 would round small steps away after a long sum.
    """

    name: ClassVar[str] = "torch"
    dtypes: ClassVar[frozenset[torch.dtype]] = TorchMamba.dtypes

    def __init__(self, need: Mamba2Need) -> None:
        super().__init__(need)
        # The location of states and the convolution are the same in both generations.
        self.steps = TorchMamba(MambaNeed(need.layer, need.channels, need.state_size, need.conv_width))

    def plan(self, batch: ForwardBatch, group: GroupBatch) -> ChunkPlan:
        chunks = cut(batch.query_starts, group.block_table_SN.device)
        return ChunkPlan(self.steps.plan(batch, group), chunks)

    def convolve(
        self, x_TC: Tensor, weight_CW: Tensor, bias_C: Tensor | None, cache: LayerCache, plan: ChunkPlan
    ) -> Tensor:
        return self.steps.convolve(x_TC, weight_CW, bias_C, cache, plan.steps)

    def scan(
        self,
        x_THD: Tensor,
        dt_TH: Tensor,
        A_H: Tensor,
        B_TGR: Tensor,
        C_TGR: Tensor,
        cache: LayerCache,
        plan: ChunkPlan,
    ) -> Tensor:
        pages_PHDR, steps = cache["ssm"], plan.steps
        state_SHDR = pages_PHDR[steps.source_S].float()
        state_SHDR[steps.fresh_S] = 0.0
        dt_TH, B_TGR, C_TGR = dt_TH.float(), B_TGR.float(), C_TGR.float()
        log_decay_TH = dt_TH * A_H.float()
        dtx_THD = dt_TH[:, :, None] * x_THD.float()
        y_THD = torch.empty_like(dtx_THD)
        if len(steps.single_rows):
            rows, members = steps.single_rows, steps.single_sequences
            y_THD[rows], state_SHDR[members] = _advance(
                state_SHDR[members], log_decay_TH[rows], dtx_THD[rows], B_TGR[rows], C_TGR[rows]
            )
        if plan.chunks is not None:
            _scan_chunks(plan.chunks, log_decay_TH, dtx_THD, B_TGR, C_TGR, state_SHDR, y_THD)
        pages_PHDR[steps.target_S] = state_SHDR.to(pages_PHDR.dtype)
        return y_THD


def _by_group(x_SHDR: Tensor, num_groups: int) -> Tensor:
    """``[S, H, D, R]`` as ``[S, G, H / G · D, R]``: grouped by shared B and C."""
    return x_SHDR.reshape(len(x_SHDR), num_groups, -1, x_SHDR.shape[-1])


def _advance(
    h_SHDR: Tensor, log_decay_SH: Tensor, dtx_SHD: Tensor, B_SGR: Tensor, C_SGR: Tensor
) -> tuple[Tensor, Tensor]:
    """Advance every sequence by one token; returns the outputs and the new states."""
    groups = B_SGR.shape[1]
    new_SGCR = dtx_SHD.view(len(dtx_SHD), groups, -1, 1) * B_SGR[:, :, None]
    h_SHDR = h_SHDR * log_decay_SH.exp()[:, :, None, None] + new_SGCR.view(h_SHDR.shape)
    y_SGC1 = _by_group(h_SHDR, groups) @ C_SGR[..., None]
    return y_SGC1.view(dtx_SHD.shape), h_SHDR


def _scan_chunks(
    chunks: Chunks,
    log_decay_TH: Tensor,
    dtx_THD: Tensor,
    B_TGR: Tensor,
    C_TGR: Tensor,
    state_SHDR: Tensor,
    y_THD: Tensor,
) -> None:
    """Fill the rows of ``y_THD`` and the sequences of ``state_SHDR`` that ``chunks`` covers."""
    rows_ZJ = chunks.rows_ZJ
    groups = B_TGR.shape[1]
    # After the end of a chunk there is neither decay nor input, so the state does not change.
    active = chunks.active_ZJ[:, :, None]
    sums_ZHJ = torch.where(active, log_decay_TH[rows_ZJ], 0.0).transpose(1, 2).double().cumsum(-1)
    dtx_ZHJD = torch.where(active[..., None], dtx_THD[rows_ZJ], 0.0).transpose(1, 2)
    B_ZGJR, C_ZGJR = B_TGR[rows_ZJ].transpose(1, 2), C_TGR[rows_ZJ].transpose(1, 2)

    to_end_ZHJ = (sums_ZHJ[..., -1:] - sums_ZHJ).float().exp()
    inputs_ZHDJ = (dtx_ZHJD * to_end_ZHJ[..., None]).transpose(2, 3)
    own_ZHDR = (_by_group(inputs_ZHDJ, groups) @ B_ZGJR).view(len(rows_ZJ), *state_SHDR.shape[1:])
    whole_ZH11 = sums_ZHJ[..., -1].float().exp()[..., None, None]
    begin_ZHDR = torch.empty_like(own_ZHDR)
    carried_SHDR = state_SHDR[chunks.sequences]
    for turn in chunks.turns:
        begin_ZHDR[turn] = carried_SHDR[: turn.stop - turn.start]
        carried_SHDR[: turn.stop - turn.start] = begin_ZHDR[turn] * whole_ZH11[turn] + own_ZHDR[turn]
    state_SHDR[chunks.sequences] = carried_SHDR

    y_ZHJD = _read_each_other(sums_ZHJ, dtx_ZHJD, B_ZGJR, C_ZGJR)
    carried_ZGJC = C_ZGJR @ _by_group(begin_ZHDR, groups).transpose(2, 3)
    carried_ZJHD = carried_ZGJC.transpose(1, 2).reshape(*rows_ZJ.shape, *dtx_THD.shape[1:])
    y_ZHJD += carried_ZJHD.transpose(1, 2) * sums_ZHJ.float().exp()[..., None]
    y_THD[rows_ZJ[chunks.active_ZJ]] = y_ZHJD.transpose(1, 2)[chunks.active_ZJ]


def _read_each_other(sums_ZHJ: Tensor, dtx_ZHJD: Tensor, B_ZGJR: Tensor, C_ZGJR: Tensor) -> Tensor:
    """The contribution of a chunk's tokens to each other, up to and including the token itself, ``y_ZHJD``."""
    size = sums_ZHJ.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=sums_ZHJ.device).triu(1)
    decay_ZHJJ = (
        (sums_ZHJ[..., :, None] - sums_ZHJ[..., None, :]).float().masked_fill_(later, float("-inf")).exp_()
    )
    scores_ZGJJ = C_ZGJR @ B_ZGJR.transpose(2, 3)
    decay_ZHJJ.view(len(decay_ZHJJ), scores_ZGJJ.shape[1], -1, size, size).mul_(scores_ZGJJ[:, :, None])
    return decay_ZHJJ @ dtx_ZHJD
