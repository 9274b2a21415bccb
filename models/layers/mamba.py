"""The Mamba-1 mixer (Gu and Dao, 2023), with Jamba's norms of dt, B and C."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from kvhybrid.models.backends import mamba_backends
from kvhybrid.models.backends.base import MambaBackend, MambaNeed
from kvhybrid.models.layers.activation import Activation
from kvhybrid.models.layers.cached import CachedLayer, dtype_name
from kvhybrid.models.layers.norm import RMSNorm
from kvhybrid.models.layers.plans import Plans
from kvhybrid.specs import KVCacheSpec, MambaSpec


@dataclass(frozen=True)
class MambaSizes:
    width: int
    channels: int
    state_size: int
    conv_width: int
    dt_rank: int
    conv_bias: bool
    proj_bias: bool
    norm_eps: float


class DepthwiseConv(nn.Module):
    """The weights of the causal convolution; the backend applies them."""

    def __init__(self, channels: int, width: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, width))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None

    def fill(self, generator: torch.Generator) -> None:
        """The weights of an untrained layer."""
        self.weight.normal_(0.0, self.weight.shape[-1] ** -0.5, generator=generator)
        if self.bias is not None:
            self.bias.zero_()


class MambaMixer(CachedLayer):
    """Keeps a convolution state of W − 1 inputs and a float32 scan state of C × R."""

    backend: MambaBackend

    def __init__(self, name: str, sizes: MambaSizes, act: Activation, *, backend: str) -> None:
        super().__init__()
        self.name = name
        self.sizes = sizes
        self.act = act
        self.backend = mamba_backends.find(backend)(
            MambaNeed(name, sizes.channels, sizes.state_size, sizes.conv_width)
        )
        self.in_proj = nn.Linear(sizes.width, 2 * sizes.channels, bias=sizes.proj_bias)
        self.conv1d = DepthwiseConv(sizes.channels, sizes.conv_width, sizes.conv_bias)
        self.x_proj = nn.Linear(sizes.channels, sizes.dt_rank + 2 * sizes.state_size, bias=False)
        self.dt_proj = nn.Linear(sizes.dt_rank, sizes.channels, bias=True)
        self.A_log = nn.Parameter(torch.empty(sizes.channels, sizes.state_size))
        self.D = nn.Parameter(torch.empty(sizes.channels))
        self.out_proj = nn.Linear(sizes.channels, sizes.width, bias=sizes.proj_bias)
        self.dt_layernorm = RMSNorm(sizes.dt_rank, sizes.norm_eps)
        self.b_layernorm = RMSNorm(sizes.state_size, sizes.norm_eps)
        self.c_layernorm = RMSNorm(sizes.state_size, sizes.norm_eps)

    def fill(self, generator: torch.Generator) -> None:
        """The weights of an untrained layer: decays of 1 … R, and steps between 0.001 and 0.1."""
        self.A_log.copy_(torch.arange(1, self.sizes.state_size + 1).log().expand_as(self.A_log))
        self.D.fill_(1.0)
        spread = torch.rand(self.sizes.channels, generator=generator)
        step = 0.001 * 100.0**spread
        self.dt_proj.bias.copy_(step.expm1().log())

    def spec(self, block_size: int, dtype: torch.dtype) -> KVCacheSpec:
        channels = self.sizes.channels
        return MambaSpec(
            block_size=block_size,
            names=("conv", "ssm"),
            shapes=((channels, self.sizes.conv_width - 1), (channels, self.sizes.state_size)),
            dtypes=(dtype_name(dtype), "float32"),
        )

    def forward(self, x_TM: Tensor, plans: Plans) -> Tensor:
        plan = plans.plan(self.name, self.backend)
        inner_TC, gate_TC = self.in_proj(x_TM).chunk(2, dim=-1)
        conv_TC = self.backend.convolve(inner_TC, self.conv1d.weight[:, 0], self.conv1d.bias, self.cache, plan)
        inner_TC = self.act(conv_TC)
        dt_TD, B_TR, C_TR = self.x_proj(inner_TC).split(
            (self.sizes.dt_rank, self.sizes.state_size, self.sizes.state_size), dim=-1
        )
        raw_TC = functional.linear(self.dt_layernorm(dt_TD), self.dt_proj.weight)
        y_TC = self.backend.scan(
            inner_TC,
            functional.softplus(raw_TC.float() + self.dt_proj.bias.float()),
            -self.A_log.float().exp(),
            self.b_layernorm(B_TR),
            self.c_layernorm(C_TR),
            self.cache,
            plan,
        )
        y_TC = (y_TC + inner_TC.float() * self.D.float()) * functional.silu(gate_TC)
        out_TM: Tensor = self.out_proj(y_TC.to(x_TM.dtype))
        return out_TM
