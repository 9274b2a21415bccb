"""Stand-ins for the kernels of mamba-ssm and causal-conv1d, with the real signatures, in plain torch.

They insist on the layouts, element types and sizes that the CUDA and Triton sources check, and compute as those
do, with decays in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def causal_conv1d() -> ModuleType:
    """The package causal-conv1d, as of 1.5.0 and 1.7.0."""

    def causal_conv1d_fn(
        x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False,
        final_states_out=None, activation=None,
    ):  # fmt: skip
        assert activation is None
        assert seq_idx is None
        check_convolution(x, weight, bias)
        assert x.stride(1) == 1 < x.stride(2), "states go only with channels that lie beside each other"
        assert x.shape[1] % 8 == x.stride(2) % 8 == x.stride(0) % 8 == 0
        assert x.data_ptr() % 16 == 0
        state = initial_states
        assert state.dtype == x.dtype
        assert tuple(state.shape) == (*x.shape[:2], weight.shape[1] - 1)
        assert state.stride(1) == 1, "so do the first states"
        out, whole = convolved(x, state, weight, bias)
        final = whole[:, :, -state.shape[2] :].transpose(1, 2).contiguous().transpose(1, 2)
        return (out, final) if return_final_states else out

    def causal_conv1d_update(
        x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, conv_state_indices=None
    ):
        assert activation is None
        assert cache_seqlens is None
        check_convolution(x[:, :, None], weight, bias)
        assert conv_state.dtype == x.dtype
        if conv_state_indices is None:
            assert len(conv_state) == len(x)
            rows = torch.arange(len(x))
        else:
            assert conv_state_indices.dtype == torch.int32
            rows = conv_state_indices.long()
        out, whole = convolved(x[:, :, None], conv_state[rows], weight, bias)
        conv_state[rows] = whole[:, :, -conv_state.shape[2] :]
        return out[:, :, 0]

    return module("causal_conv1d", causal_conv1d_fn, causal_conv1d_update)


def check_convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    assert x.dtype in FLOATS
    assert weight.dtype in FLOATS
    assert weight.dim() == 2
    assert len(weight) == x.shape[1]
    assert 2 <= weight.shape[1] <= 4
    assert bias is None or (bias.dtype == weight.dtype and bias.stride(-1) == 1)


def convolved(x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    whole = torch.cat((state, x), dim=2)
    floats = None if bias is None else bias.float()
    out = functional.conv1d(whole.float(), weight.float()[:, None], floats, groups=x.shape[1])
    return out.to(x.dtype), whole


def selective_state_update(state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False,
                           state_batch_indices=None):  # fmt: skip
    """mamba_ssm.ops.triton.selective_state_update, as of 2.2.6 and 2.3.2."""
    # The real wrapper cannot do without: it unpacks the strides of both.
    assert D is not None
    assert dt_bias is not None
    assert z is None
    assert not dt_softplus
    state, x, dt, B, C = (
        part.unsqueeze(1) if part.dim() == dims else part
        for part, dims in ((state, 3), (x, 2), (dt, 2), (B, 2), (C, 2))
    )
    A, D, dt_bias = (
        part.unsqueeze(0) if part.dim() == dims else part for part, dims in ((A, 2), (D, 1), (dt_bias, 1))
    )
    _, heads, size, states = state.shape
    batch, groups = len(x), B.shape[1]
    assert x.shape == dt.shape == (batch, heads, size)
    assert A.shape == (heads, size, states)
    assert B.shape == C.shape == (batch, groups, states)
    assert heads % groups == 0
    assert D.shape == dt_bias.shape == (heads, size)
    assert state_batch_indices.shape == (batch,)
    assert state_batch_indices.dtype == torch.int64, "32 bits overflow in a large pool"
    assert len(set(state_batch_indices.tolist())) == batch, "two sequences in one page"
    h = state[state_batch_indices].float()
    steps = dt.float() + dt_bias.float()
    B, C = (part.float().repeat_interleave(heads // groups, dim=1) for part in (B, C))
    h = h * torch.exp(A.float() * steps[..., None]) + B[:, :, None] * steps[..., None] * x.float()[..., None]
    state[state_batch_indices] = h.to(state.dtype)
    out = (h * C[:, :, None]).sum(-1) + x.float() * D.float()
    return out.to(x.dtype).squeeze(1) if heads == 1 else out.to(x.dtype)


def selective_scan_fn(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False,
                      return_last_state=False):  # fmt: skip
    """mamba_ssm.ops.selective_scan_interface. It starts from zero, and takes powers of 2 as the kernel does."""
    assert u.dtype == delta.dtype == B.dtype == C.dtype
    assert u.dtype in FLOATS
    assert A.dtype == torch.float32
    batch, channels, length = u.shape
    states = A.shape[1]
    assert states <= 256
    assert delta.shape == u.shape
    assert B.shape == C.shape == (batch, states, length)
    assert all(part.stride(-1) == 1 for part in (u, delta, B, C))
    assert D is None
    assert z is None
    assert delta_bias is None
    assert not delta_softplus
    h = torch.zeros(batch, channels, states)
    powers, out = A * 1.4426950408889634, []
    for t in range(length):
        decay = torch.exp2(delta[:, :, t, None].float() * powers)
        h = decay * h + B[:, None, :, t].float() * (delta[:, :, t].float() * u[:, :, t].float())[..., None]
        out.append((h * C[:, None, :, t].float()).sum(-1))
    y = torch.stack(out, dim=2).to(u.dtype)
    return (y, h) if return_last_state else y


def mamba_chunk_scan_combined(x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, initial_states=None,
                              seq_idx=None, cu_seqlens=None, dt_softplus=False, dt_limit=(0.0, float("inf")),
                              return_final_states=False, return_varlen_states=False):  # fmt: skip
    """mamba_ssm.ops.triton.ssd_combined."""
    batch, length, heads, size = x.shape
    groups, states = B.shape[2:]
    assert chunk_size & (chunk_size - 1) == 0
    assert x.dtype == B.dtype == C.dtype
    assert x.dtype in FLOATS
    assert dt.shape == (batch, length, heads)
    assert A.shape == (heads,)
    assert B.shape == C.shape == (batch, length, groups, states)
    assert heads % groups == 0
    assert not any(found is not None for found in (D, z, dt_bias, seq_idx, cu_seqlens))
    assert not dt_softplus
    assert not return_varlen_states
    h = torch.zeros(batch, heads, size, states)
    if initial_states is not None:
        assert initial_states.shape == h.shape
        h = initial_states.float()
    B, C = (part.float().repeat_interleave(heads // groups, dim=2) for part in (B, C))
    out = []
    for t in range(length):
        step = dt[:, t].float()
        new = (step[..., None] * x[:, t].float())[..., None] * B[:, t, :, None]
        h = h * torch.exp(step * A.float())[..., None, None] + new
        out.append((h * C[:, t, :, None]).sum(-1))
    y = torch.stack(out, dim=1).to(x.dtype)
    return (y, h) if return_final_states else y


def modules() -> dict[str, ModuleType]:
    """All of them, by the names under which they are imported."""
    found = [
        causal_conv1d(),
        module("mamba_ssm.ops.triton.selective_state_update", selective_state_update),
        module("mamba_ssm.ops.selective_scan_interface", selective_scan_fn),
        module("mamba_ssm.ops.triton.ssd_combined", mamba_chunk_scan_combined),
    ]
    return {each.__name__: each for each in found}


def module(name: str, *functions: Callable[..., Any]) -> ModuleType:
    made = ModuleType(name)
    for function in functions:
        setattr(made, function.__name__, function)
    return made
