"""Mamba-1 with the kernels of the packages mamba-ssm and causal-conv1d."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from kvhybrid.models.backends.base import MambaBackend, MambaNeed
from kvhybrid.models.backends.states import (
    CausalConvolution,
    StatePlan,
    load_state_kernels,
    settle_singles,
    shape_faults,
    state_plan,
)
from kvhybrid.models.base import ForwardBatch, GroupBatch, LayerCache

TINY = 2.0**-64
"""A step so short that no state decays over it, to the last bit of float32."""


class MambaSsm(MambaBackend):
    """Sequences of one token are updated in place in their pages. Longer ones are scanned one by one, in float32.

    The scan's kernel starts from zero, so an initial state is prepended to the prompt as R steps of length `TINY`:
    step r adds ``TINY · (h / TINY)`` to element r of the state and, since ``exp(TINY · A)`` is 1, has no decay.
    """

    name: ClassVar[str] = "mamba_ssm"
    dtypes: ClassVar[frozenset[torch.dtype]] = frozenset({torch.float32, torch.bfloat16, torch.float16})
    devices: ClassVar[frozenset[str] | None] = frozenset({"cuda"})

    def __init__(self, need: MambaNeed) -> None:
        super().__init__(need)
        backend = f"{self.noun} {self.name}"
        self._convolution = CausalConvolution(backend)
        self._update, self._scan = load_state_kernels(
            backend, "mamba_ssm.ops.selective_scan_interface", "selective_scan_fn"
        )

    @classmethod
    def lacking(cls, need: MambaNeed) -> list[str]:
        faults = shape_faults(need.channels, need.conv_width)
        return [*faults, f"a state of {need.state_size}, more than 256"] if need.state_size > 256 else faults

    def plan(self, batch: ForwardBatch, group: GroupBatch) -> StatePlan:
        return state_plan(batch, group)

    def convolve(
        self, x_TC: Tensor, weight_CW: Tensor, bias_C: Tensor | None, cache: LayerCache, plan: StatePlan
    ) -> Tensor:
        return self._convolution(x_TC, weight_CW, bias_C, cache, plan)

    def scan(
        self,
        x_TC: Tensor,
        dt_TC: Tensor,
        A_CR: Tensor,
        B_TR: Tensor,
        C_TR: Tensor,
        cache: LayerCache,
        plan: StatePlan,
    ) -> Tensor:
        pages_PCR = cache["ssm"]
        x_TC, dt_TC, B_TR, C_TR = x_TC.float(), dt_TC.float(), B_TR.float(), C_TR.float()
        A_CR = A_CR.float().contiguous()
        y_TC = torch.empty_like(x_TC)
        for span in plan.spans:
            rows = span.rows
            before_CR = None if span.source_1 is None else pages_PCR[span.source_1][0].float()
            y_LC, after_1CR = self._span(x_TC[rows], dt_TC[rows], A_CR, B_TR[rows], C_TR[rows], before_CR)
            y_TC[rows] = y_LC
            pages_PCR[span.target_1] = after_1CR.to(pages_PCR.dtype)
        if len(plan.single_rows):
            rows_S = plan.single_rows
            settle_singles(pages_PCR, plan)
            zeros_C = torch.zeros_like(A_CR[:, 0])
            # The kernel's wrapper fails without D and a bias of dt (seen up to mamba-ssm 2.3.2).
            y_TC[rows_S] = self._update(
                pages_PCR,
                x_TC[rows_S],
                dt_TC[rows_S],
                A_CR,
                B_TR[rows_S],
                C_TR[rows_S],
                D=zeros_C,
                dt_bias=zeros_C,
                state_batch_indices=plan.single_targets,
            )
        return y_TC

    def _span(
        self, x_LC: Tensor, dt_LC: Tensor, A_CR: Tensor, B_LR: Tensor, C_LR: Tensor, before_CR: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The outputs of one sequence's tokens, and the state after them."""
        lead = 0
        if before_CR is not None:
            lead = before_CR.shape[1]
            x_LC = torch.cat((before_CR.t() / TINY, x_LC))
            dt_LC = torch.cat((dt_LC.new_full((lead, dt_LC.shape[1]), TINY), dt_LC))
            B_LR = torch.cat((torch.eye(lead, dtype=B_LR.dtype, device=B_LR.device), B_LR))
            C_LR = torch.cat((C_LR.new_zeros(lead, lead), C_LR))
        y_1CL, after_1CR = self._scan(
            *(part.t()[None].contiguous() for part in (x_LC, dt_LC)),
            A_CR,
            *(part.t()[None].contiguous() for part in (B_LR, C_LR)),
            return_last_state=True,
        )
        return y_1CL[0, :, lead:].t(), after_1CR
