"""Mamba-1's selective scan with a gradient, in plain torch, fast enough to train a small model on a CPU.

Shape suffixes: B sequences, L tokens, C channels, R recurrent state size, J tokens of a chunk.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

CHUNK = 16
"""Tokens whose states are held at once. They stay in the processor's cache, which is what makes the scan fast; the
backward pass computes them again from the states between the chunks."""


class SelectiveScan(torch.autograd.Function):
    """``h = exp(dt · A) · h + dt · x · B`` and ``y = C · h``, token by token from a zero state."""

    @staticmethod
    def forward(ctx: Any, dt_LBC: Tensor, dtx_LBC: Tensor, A_RC: Tensor, B_LBR: Tensor, C_LBR: Tensor) -> Tensor:
        h_BRC = dt_LBC.new_zeros(dt_LBC.shape[1], *A_RC.shape)
        starts, y_LBC = [], torch.empty_like(dt_LBC)
        for begin in range(0, len(dt_LBC), CHUNK):
            part = slice(begin, begin + CHUNK)
            starts.append(h_BRC)
            h_JBRC, _ = _states(h_BRC, dt_LBC[part], dtx_LBC[part], A_RC, B_LBR[part])
            y_LBC[part] = _read(h_JBRC, C_LBR[part])
            h_BRC = h_JBRC[-1].clone()
        ctx.save_for_backward(dt_LBC, dtx_LBC, A_RC, B_LBR, C_LBR, torch.stack(starts))
        return y_LBC

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        (gy_LBC,) = grads
        dt_LBC, dtx_LBC, A_RC, B_LBR, C_LBR, starts = ctx.saved_tensors
        g_dt, g_dtx, g_A, g_B, g_C = map(torch.zeros_like, (dt_LBC, dtx_LBC, A_RC, B_LBR, C_LBR))
        carried_BRC = torch.zeros_like(starts[0])  # the gradient of the state that the chunk hands on
        for index in reversed(range(len(starts))):
            part = slice(index * CHUNK, (index + 1) * CHUNK)
            dt, dtx, B_JBR, gy = dt_LBC[part], dtx_LBC[part], B_LBR[part], gy_LBC[part]
            h_JBRC, decay_JBRC = _states(starts[index], dt, dtx, A_RC, B_JBR)
            g_JBRC = C_LBR[part][..., None] * gy[:, :, None]
            g_JBRC[-1] += carried_BRC
            for j in range(len(g_JBRC) - 2, -1, -1):
                g_JBRC[j].addcmul_(g_JBRC[j + 1], decay_JBRC[j + 1])
            carried_BRC = g_JBRC[0] * decay_JBRC[0]
            g_C[part] = torch.matmul(h_JBRC, gy[..., None]).squeeze(3)
            g_B[part] = torch.matmul(g_JBRC, dtx[..., None]).squeeze(3)
            g_dtx[part] = _read(g_JBRC, B_JBR)
            # The gradient of dt · A: that of the decay times the decay itself.
            before_JBRC = torch.cat((starts[index][None], h_JBRC[:-1]))
            exponent_JBRC = before_JBRC.mul_(decay_JBRC).mul_(g_JBRC)
            g_A += (exponent_JBRC * dt[:, :, None]).sum((0, 1))
            g_dt[part] = exponent_JBRC.mul_(A_RC).sum(2)
        return g_dt, g_dtx, g_A, g_B, g_C


def _states(h_BRC: Tensor, dt_JBC: Tensor, dtx_JBC: Tensor, A_RC: Tensor, B_JBR: Tensor) -> tuple[Tensor, Tensor]:
    """The state after each token of a chunk that starts from ``h_BRC``, and each token's decay."""
    decay_JBRC = torch.exp_(dt_JBC[:, :, None] * A_RC)
    h_JBRC = dtx_JBC[:, :, None] * B_JBR[..., None]
    for j in range(len(h_JBRC)):
        h_JBRC[j].addcmul_(h_BRC, decay_JBRC[j])
        h_BRC = h_JBRC[j]
    return h_JBRC, decay_JBRC


def _read(h_JBRC: Tensor, vector_JBR: Tensor) -> Tensor:
    return torch.matmul(vector_JBR[:, :, None], h_JBRC).squeeze(2)


def mixer_forward(mixer: Any, x_BLM: Tensor) -> Tensor:
    """What transformers' Jamba mixer computes without a cache, with the scan above."""
    inner_BLC, gate_BLC = mixer.in_proj(x_BLM).chunk(2, dim=-1)
    conv_BCL = mixer.conv1d(inner_BLC.transpose(1, 2))[..., : x_BLM.shape[1]]
    inner_BLC = mixer.act(conv_BCL.transpose(1, 2))
    sizes = (mixer.time_step_rank, mixer.ssm_state_size, mixer.ssm_state_size)
    dt_BLD, B_BLR, C_BLR = mixer.x_proj(inner_BLC).split(sizes, dim=-1)
    raw_BLC = functional.linear(mixer.dt_layernorm(dt_BLD), mixer.dt_proj.weight)
    dt_BLC = functional.softplus(raw_BLC.float() + mixer.dt_proj.bias)
    tokens_first = (
        tensor.float().transpose(0, 1).contiguous()
        for tensor in (dt_BLC, dt_BLC * inner_BLC, mixer.b_layernorm(B_BLR), mixer.c_layernorm(C_BLR))
    )
    dt_LBC, dtx_LBC, B_LBR, C_LBR = tokens_first
    y_LBC: Tensor = SelectiveScan.apply(dt_LBC, dtx_LBC, -mixer.A_log.exp().T, B_LBR, C_LBR)
    y_BLC = (y_LBC.transpose(0, 1) + inner_BLC * mixer.D) * mixer.act(gate_BLC)
    out_BLM: Tensor = mixer.out_proj(y_BLC)
    return out_BLM
