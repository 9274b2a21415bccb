"""The reference gated delta backend in plain torch, for any device with float64.

The chunked form follows Yang et al. (arXiv:2406.06484) and, for the decays, Yang, Kautz and Hatamizadeh
(arXiv:2412.06464).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from kvhybrid.models.backends.base import MambaNeed
from kvhybrid.models.backends.gated_delta import GatedDeltaBackend, GatedDeltaNeed
from kvhybrid.models.backends.torch_chunks import ChunkPlan, Chunks, cut
from kvhybrid.models.backends.torch_mamba import TorchMamba
from kvhybrid.models.base import ForwardBatch, GroupBatch, LayerCache


class TorchGatedDelta(GatedDeltaBackend):
    """Sequences of one token advance together in one step. Longer ones are split into chunks.

    What a token writes depends on the state's value under its key, and so on all earlier writes. Within a chunk
    this is a triangular system. Its solution expresses every write as a constant plus a term linear in the chunk's
    initial state, so only that state has to be passed from chunk to chunk.

    A decay between two tokens is the exponential of a difference of float64 sums, never a quotient of
    exponentials, so nothing overflows and small decays keep their precision after a long sum.
    """

    name: ClassVar[str] = "torch"
    dtypes: ClassVar[frozenset[torch.dtype]] = TorchMamba.dtypes

    def __init__(self, need: GatedDeltaNeed) -> None:
        super().__init__(need)
        # The location of states and the convolution are the same as in Mamba.
        self.steps = TorchMamba(MambaNeed(need.layer, need.channels, need.key_size, need.conv_width))

    def plan(self, batch: ForwardBatch, group: GroupBatch) -> ChunkPlan:
        chunks = cut(batch.query_starts, group.block_table_SN.device)
        return ChunkPlan(self.steps.plan(batch, group), chunks)

    def convolve(self, x_TC: Tensor, weight_CW: Tensor, cache: LayerCache, plan: ChunkPlan) -> Tensor:
        return self.steps.convolve(x_TC, weight_CW, None, cache, plan.steps)

    def scan(
        self,
        q_TGR: Tensor,
        k_TGR: Tensor,
        v_THD: Tensor,
        log_decay_TH: Tensor,
        beta_TH: Tensor,
        cache: LayerCache,
        plan: ChunkPlan,
    ) -> Tensor:
        pages_PHRD, steps = cache["state"], plan.steps
        state_SHRD = pages_PHRD[steps.source_S].float()
        state_SHRD[steps.fresh_S] = 0.0
        inputs = [each.float() for each in (q_TGR, k_TGR, v_THD, log_decay_TH, beta_TH)]
        if plan.chunks is None:
            y_THD = _advance(state_SHRD, *inputs)
        else:
            y_THD = torch.empty_like(v_THD, dtype=torch.float32)
            rows, members = steps.single_rows, steps.single_sequences
            if len(rows):
                single_SHRD = state_SHRD[members]
                y_THD[rows] = _advance(single_SHRD, *(each[rows] for each in inputs))
                state_SHRD[members] = single_SHRD
            _scan_chunks(plan.chunks, state_SHRD, y_THD, *inputs)
        pages_PHRD[steps.target_S] = state_SHRD.to(pages_PHRD.dtype)
        return y_THD


def _advance(
    h_SHRD: Tensor, q_SGR: Tensor, k_SGR: Tensor, v_SHD: Tensor, log_decay_SH: Tensor, beta_SH: Tensor
) -> Tensor:
    """Advance every sequence by one token: updates the states in place and returns the outputs ``y_SHD``."""
    shared = v_SHD.shape[1] // k_SGR.shape[1]
    q_SHR, k_SHR = (x_SGR.repeat_interleave(shared, dim=1) for x_SGR in (q_SGR, k_SGR))
    decay_SH11 = log_decay_SH.exp()[:, :, None, None]
    # Both reads in one pass before the write, since passes over the states dominate the cost.
    held_SHD, seen_SHD = (torch.stack((k_SHR, q_SHR), dim=2) @ h_SHRD * decay_SH11).unbind(2)
    written_SHD = (v_SHD - held_SHD) * beta_SH[..., None]
    h_SHRD.mul_(decay_SH11).addcmul_(k_SHR[..., None], written_SHD[:, :, None])
    return seen_SHD + (q_SHR * k_SHR).sum(-1, keepdim=True) * written_SHD


def _scan_chunks(
    chunks: Chunks,
    state_SHRD: Tensor,
    y_THD: Tensor,
    q_TGR: Tensor,
    k_TGR: Tensor,
    v_THD: Tensor,
    log_decay_TH: Tensor,
    beta_TH: Tensor,
) -> None:
    """Fill the rows of ``y_THD`` and the sequences of ``state_SHRD`` that ``chunks`` covers."""
    rows_Z1J, active_Z1J = chunks.rows_ZJ[:, None], chunks.active_ZJ[:, None]
    head_H1 = torch.arange(v_THD.shape[1], device=v_THD.device)[:, None]
    key_head_H1 = head_H1 // (v_THD.shape[1] // k_TGR.shape[1])
    q_ZHJR, k_ZHJR = (x_TGR[rows_Z1J, key_head_H1] for x_TGR in (q_TGR, k_TGR))
    v_ZHJD = v_THD[rows_Z1J, head_H1]
    # After the end of a chunk, nothing decays and nothing is written, so the state does not change.
    sums_ZHJ = torch.where(active_Z1J, log_decay_TH[rows_Z1J, head_H1], 0.0).double().cumsum(-1)
    beta_ZHJ1 = torch.where(active_Z1J, beta_TH[rows_Z1J, head_H1], 0.0)[..., None]
    from_begin_ZHJ1 = sums_ZHJ.float().exp()[..., None]
    to_end_ZHJ1 = (sums_ZHJ[..., -1:] - sums_ZHJ).float().exp()[..., None]
    decay_ZHJJ = _decays(sums_ZHJ)

    system_ZHJJ = (k_ZHJR @ k_ZHJR.transpose(2, 3)).mul_(decay_ZHJJ).mul_(beta_ZHJ1)
    sides_ZHJX = torch.cat((v_ZHJD, k_ZHJR * from_begin_ZHJ1), dim=-1).mul_(beta_ZHJ1)
    solved_ZHJX = torch.linalg.solve_triangular(system_ZHJJ, sides_ZHJX, upper=False, unitriangular=True)
    own_ZHJD, held_ZHJR = solved_ZHJX.split((v_ZHJD.shape[-1], k_ZHJR.shape[-1]), dim=-1)

    written_ZHJD, y_ZHJD = torch.empty_like(v_ZHJD), torch.empty_like(v_ZHJD)
    late_k_ZHRJ = (k_ZHJR * to_end_ZHJ1).transpose(2, 3)
    carried_SHRD = state_SHRD[chunks.sequences]
    for turn in chunks.turns:
        h_ZHRD = carried_SHRD[: turn.stop - turn.start]
        y_ZHJD[turn] = q_ZHJR[turn] @ h_ZHRD
        written_ZHJD[turn] = own_ZHJD[turn] - held_ZHJR[turn] @ h_ZHRD
        h_ZHRD.mul_(from_begin_ZHJ1[turn, :, -1:]).add_(late_k_ZHRJ[turn] @ written_ZHJD[turn])
    state_SHRD[chunks.sequences] = carried_SHRD

    scores_ZHJJ = (q_ZHJR @ k_ZHJR.transpose(2, 3)).mul_(decay_ZHJJ)
    y_ZHJD.mul_(from_begin_ZHJ1).add_(scores_ZHJJ @ written_ZHJD)
    y_THD[chunks.rows_ZJ[chunks.active_ZJ]] = y_ZHJD.transpose(1, 2)[chunks.active_ZJ]


def _decays(sums_ZHJ: Tensor) -> Tensor:
    """Decay from each earlier token to each token; 0 for later ones, ``[Z, H, J, J]``."""
    size = sums_ZHJ.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=sums_ZHJ.device).triu(1)
    between = (sums_ZHJ[..., :, None] - sums_ZHJ[..., None, :]).float()
    return between.masked_fill_(later, float("-inf")).exp_()
