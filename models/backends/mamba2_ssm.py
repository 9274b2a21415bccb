"""Mamba-2 with the kernels of the packages mamba-ssm and causal-conv1d."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from kvhybrid.models.backends.mamba2 import Mamba2Backend, Mamba2Need
from kvhybrid.models.backends.states import (
    CausalConvolution,
    StatePlan,
    load_state_kernels,
    settle_singles,
    shape_faults,
    state_plan,
)
from kvhybrid.models.base import ForwardBatch, GroupBatch, LayerCache

CHUNK = 256
"""The kernel's chunk size, in tokens."""


class Mamba2Ssm(Mamba2Backend):
    """Sequences of one token are updated in place in their pages. Longer ones take one chunked scan each, which
    starts from their state and computes products in the dtype of ``x``."""

    name: ClassVar[str] = "mamba_ssm"
    dtypes: ClassVar[frozenset[torch.dtype]] = frozenset({torch.float32, torch.bfloat16, torch.float16})
    devices: ClassVar[frozenset[str] | None] = frozenset({"cuda"})

    def __init__(self, need: Mamba2Need) -> None:
        super().__init__(need)
        backend = f"{self.noun} {self.name}"
        self._convolution = CausalConvolution(backend)
        self._update, self._scan = load_state_kernels(
            backend, "mamba_ssm.ops.triton.ssd_combined", "mamba_chunk_scan_combined"
        )

    @classmethod
    def lacking(cls, need: Mamba2Need) -> list[str]:
        return shape_faults(need.channels, need.conv_width)

    def plan(self, batch: ForwardBatch, group: GroupBatch) -> StatePlan:
        return state_plan(batch, group)

    def convolve(
        self, x_TC: Tensor, weight_CW: Tensor, bias_C: Tensor | None, cache: LayerCache, plan: StatePlan
    ) -> Tensor:
        return self._convolution(x_TC, weight_CW, bias_C, cache, plan)

    def scan(
        self,
        x_THD: Tensor,
        dt_TH: Tensor,
        A_H: Tensor,
        B_TGR: Tensor,
        C_TGR: Tensor,
        cache: LayerCache,
        plan: StatePlan,
    ) -> Tensor:
        pages_PHDR, dt_TH, A_H = cache["ssm"], dt_TH.float(), A_H.float().contiguous()
        B_TGR, C_TGR = B_TGR.to(x_THD.dtype), C_TGR.to(x_THD.dtype)
        y_THD = torch.empty(x_THD.shape, dtype=torch.float32, device=x_THD.device)
        for span in plan.spans:
            rows = span.rows
            y_1LHD, after_1HDR = self._scan(
                x_THD[rows][None],
                dt_TH[rows][None],
                A_H,
                B_TGR[rows][None],
                C_TGR[rows][None],
                CHUNK,
                initial_states=None if span.source_1 is None else pages_PHDR[span.source_1].float(),
                return_final_states=True,
            )
            y_THD[rows] = y_1LHD[0].float()
            pages_PHDR[span.target_1] = after_1HDR.to(pages_PHDR.dtype)
        if len(plan.single_rows):
            settle_singles(pages_PHDR, plan)
            y_THD[plan.single_rows] = self._advance(x_THD, dt_TH, A_H, B_TGR, C_TGR, pages_PHDR, plan)
        return y_THD

    def _advance(
        self,
        x_THD: Tensor,
        dt_TH: Tensor,
        A_H: Tensor,
        B_TGR: Tensor,
        C_TGR: Tensor,
        pages_PHDR: Tensor,
        plan: StatePlan,
    ) -> Tensor:
        """Advance the sequences of one token; returns their outputs ``y_SHD``."""
        rows_S, x_SHD = plan.single_rows, x_THD[plan.single_rows].float()
        heads, size, states = pages_PHDR.shape[1:]
        # Expanded and not copied: a stride of 0 tells the kernel that a head has one decay. Without D and a
        # bias of dt its wrapper fails (seen up to mamba-ssm 2.3.2).
        zeros_HD = torch.zeros_like(A_H)[:, None].expand(-1, size)
        found: Tensor = self._update(
            pages_PHDR,
            x_SHD,
            dt_TH[rows_S][:, :, None].expand_as(x_SHD),
            A_H[:, None, None].expand(heads, size, states),
            B_TGR[rows_S].float(),
            C_TGR[rows_S].float(),
            D=zeros_HD,
            dt_bias=zeros_HD,
            state_batch_indices=plan.single_targets,
        )
        return found
