"""The Mamba-1 mixer (Gu and Dao, 2023), with Jamba's norms of dt, B and C."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor, nn
from torch.nn import functional

from kvhybrid.models.backends import mamba_backends
from kvhybrid.models.backends.base import MambaBackend, MambaNeed
from kvhybrid.models.config import count, flag, optional_or
from kvhybrid.models.layers.activation import Activation
from kvhybrid.models.layers.cached import CachedLayer, dtype_name
from kvhybrid.models.layers.norm import RMSNorm
from kvhybrid.models.layers.plans import Plans
from kvhybrid.specs import KVCacheSpec, MambaSpec


@dataclass(frozen=True, kw_only=True)
class MambaSizes:
    """The ``mamba_`` keys of a Hugging Face config."""

    expand: int = count(2, key="mamba_expand")
    """Inner width divided by the model's width."""
    state_size: int = count(16, key="mamba_d_state")
    conv_width: int = count(4, least=2, key="mamba_d_conv")
    given_dt_rank: int | None = optional_or("auto", count(key="mamba_dt_rank"))
    conv_bias: bool = flag(True, key="mamba_conv_bias")
    proj_bias: bool = flag(False, key="mamba_proj_bias")

    def dt_rank(self, width: int) -> int:
        return self.given_dt_rank or ceil(width / 16)


class DepthwiseConv(nn.Module):
    """The weights of the causal convolution; the backend applies them."""

    def __init__(self, channels: int, width: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, width))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None

    def fill(self, generator: torch.Generator) -> None:
        """Initialize an untrained layer."""
        self.weight.normal_(0.0, self.weight.shape[-1] ** -0.5, generator=generator)
        if self.bias is not None:
            self.bias.zero_()


class MambaMixer(CachedLayer):
    """Keeps a convolution state of W − 1 inputs and a float32 scan state of C × R."""

    backend: MambaBackend

    def __init__(
        self, name: str, width: int, sizes: MambaSizes, norm_eps: float, act: Activation, *, backend: str
    ) -> None:
        super().__init__()
        self.name = name
        self.act = act
        self.need = need = MambaNeed(name, sizes.expand * width, sizes.state_size, sizes.conv_width)
        self.backend = mamba_backends.find(backend)(need)
        channels, rank = need.channels, sizes.dt_rank(width)
        self.in_proj = nn.Linear(width, 2 * channels, bias=sizes.proj_bias)
        self.conv1d = DepthwiseConv(channels, need.conv_width, sizes.conv_bias)
        self.x_proj = nn.Linear(channels, rank + 2 * need.state_size, bias=False)
        self.dt_proj = nn.Linear(rank, channels, bias=True)
        self.A_log = nn.Parameter(torch.empty(channels, need.state_size))
        self.D = nn.Parameter(torch.empty(channels))
        self.out_proj = nn.Linear(channels, width, bias=sizes.proj_bias)
        self.dt_layernorm = RMSNorm(rank, norm_eps)
        self.b_layernorm = RMSNorm(need.state_size, norm_eps)
        self.c_layernorm = RMSNorm(need.state_size, norm_eps)

    def fill(self, generator: torch.Generator) -> None:
        """Initialize an untrained layer: decays of 1 … R, and steps between 0.001 and 0.1."""
        self.A_log.copy_(torch.arange(1, self.need.state_size + 1).log().expand_as(self.A_log))
        self.D.fill_(1.0)
        spread = torch.rand(self.need.channels, generator=generator)
        step = 0.001 * 100.0**spread
        self.dt_proj.bias.copy_(step.expm1().log())

    def spec(self, block_size: int, dtype: torch.dtype) -> KVCacheSpec:
        need = self.need
        return MambaSpec(
            block_size=block_size,
            names=("conv", "ssm"),
            shapes=((need.channels, need.conv_width - 1), (need.channels, need.state_size)),
            dtypes=(dtype_name(dtype), "float32"),
        )

    def forward(self, x_TM: Tensor, plans: Plans) -> Tensor:
        plan = plans.plan(self.name, self.backend)
        inner_TC, gate_TC = self.in_proj(x_TM).chunk(2, dim=-1)
        conv_TC = self.backend.convolve(inner_TC, self.conv1d.weight[:, 0], self.conv1d.bias, self.cache, plan)
        inner_TC = self.act(conv_TC)
        dt_TD, B_TR, C_TR = self.x_proj(inner_TC).split(
            (self.dt_proj.in_features, self.need.state_size, self.need.state_size), dim=-1
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
