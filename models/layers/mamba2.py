"""The Mamba-2 mixer (Dao and Gu, arXiv:2405.21060): heads with one decay each, and a gated norm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isnan
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kvhybrid.models.backends import mamba2_backends
from kvhybrid.models.backends.mamba2 import Mamba2Backend, Mamba2Need
from kvhybrid.models.config import count, flag, listed, optional_or, value
from kvhybrid.models.layers.activation import Activation
from kvhybrid.models.layers.cached import CachedLayer, dtype_name
from kvhybrid.models.layers.mamba import DepthwiseConv
from kvhybrid.models.layers.plans import Plans
from kvhybrid.specs import KVCacheSpec, MambaSpec


def _step_limit(found: Any) -> float:
    """A bound in ``time_step_limit``; infinity may be a string or, as transformers saves it, a dict."""
    value = float(found["__float__"] if isinstance(found, Mapping) else found)
    if isnan(value):
        raise ValueError
    return value


@dataclass(frozen=True, kw_only=True)
class Mamba2Sizes:
    """The ``mamba_`` keys of a Hugging Face config, with the defaults of Bamba and Granite."""

    expand: int = count(2, key="mamba_expand")
    """Inner width divided by the model's width."""
    num_heads: int = count(128, key="mamba_n_heads")
    given_head_size: int | None = optional_or("auto", count(key="mamba_d_head"))
    num_groups: int = count(1, key="mamba_n_groups")
    state_size: int = count(256, key="mamba_d_state")
    conv_width: int = count(4, least=2, key="mamba_d_conv")
    conv_bias: bool = flag(True, key="mamba_conv_bias")
    proj_bias: bool = flag(False, key="mamba_proj_bias")
    step_limits: tuple[float, ...] | None = listed(value("a number", _step_limit), key="time_step_limit")
    """Bounds of each token's step size; None: unbounded."""

    def need(self, layer: str, width: int) -> Mamba2Need:
        """The layer's requirements, in a model of ``width``. Raises ValueError for inconsistent sizes."""
        inner, heads = self.expand * width, self.num_heads
        head_size = self.given_head_size or inner // heads
        if head_size * heads != inner:
            raise ValueError(
                f"mamba_n_heads · mamba_d_head must be {inner}, which is mamba_expand · hidden_size, "
                f"found {heads} · {head_size}"
            )
        return Mamba2Need(layer, heads, head_size, self.num_groups, self.state_size, self.conv_width)

    def limits(self) -> tuple[float, float]:
        if self.step_limits is None:
            return 0.0, inf
        if len(self.step_limits) != 2:
            raise ValueError(f"time_step_limit must be a list of two numbers, found {len(self.step_limits)}")
        low, high = self.step_limits
        return low, high


class GatedRMSNorm(nn.Module):
    """``x · silu(gate)``, then ``x / rms(x) · weight`` with a separate mean for each group of channels.

    ``x`` and the result are float32.
    """

    def __init__(self, size: int, num_groups: int, eps: float) -> None:
        super().__init__()
        self.num_groups = num_groups
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size))

    def fill(self, generator: torch.Generator) -> None:
        """Initialize an untrained layer."""
        self.weight.fill_(1.0)

    def forward(self, x_TC: Tensor, gate_TC: Tensor) -> Tensor:
        gated_TGC = (x_TC * functional.silu(gate_TC.float())).view(len(x_TC), self.num_groups, -1)
        unit_TGC = gated_TGC * torch.rsqrt(gated_TGC.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * unit_TGC.flatten(1)


class Mamba2Mixer(CachedLayer):
    """Keeps a convolution state of W − 1 inputs (x, B and C) and a float32 scan state of H × D × R."""

    backend: Mamba2Backend

    def __init__(
        self, name: str, width: int, sizes: Mamba2Sizes, norm_eps: float, act: Activation, *, backend: str
    ) -> None:
        super().__init__()
        self.name = name
        self.act = act
        self.step_limits = sizes.limits()
        self.need = need = sizes.need(name, width)
        self.backend = mamba2_backends.find(backend)(need)
        self.in_proj = nn.Linear(width, need.inner + need.channels + need.num_heads, bias=sizes.proj_bias)
        self.conv1d = DepthwiseConv(need.channels, need.conv_width, sizes.conv_bias)
        self.dt_bias = nn.Parameter(torch.empty(need.num_heads))
        self.A_log = nn.Parameter(torch.empty(need.num_heads))
        self.D = nn.Parameter(torch.empty(need.num_heads))
        self.norm = GatedRMSNorm(need.inner, need.num_groups, norm_eps)
        self.out_proj = nn.Linear(need.inner, width, bias=sizes.proj_bias)

    def fill(self, generator: torch.Generator) -> None:
        """Initialize an untrained layer: decays between 1 and 16, and steps between 0.001 and 0.1."""
        self.A_log.copy_((1.0 + 15.0 * torch.rand(self.need.num_heads, generator=generator)).log())
        self.D.fill_(1.0)
        step = 0.001 * 100.0 ** torch.rand(self.need.num_heads, generator=generator)
        self.dt_bias.copy_(step.expm1().log())

    def spec(self, block_size: int, dtype: torch.dtype) -> KVCacheSpec:
        need = self.need
        return MambaSpec(
            block_size=block_size,
            names=("conv", "ssm"),
            shapes=(
                (need.channels, need.conv_width - 1),
                (need.num_heads, need.head_size, need.state_size),
            ),
            dtypes=(dtype_name(dtype), "float32"),
        )

    def forward(self, x_TM: Tensor, plans: Plans) -> Tensor:
        need = self.need
        plan = plans.plan(self.name, self.backend)
        gate_TC, inputs_TC, raw_TH = self.in_proj(x_TM).split((need.inner, need.channels, need.num_heads), dim=-1)
        conv_TC = self.backend.convolve(inputs_TC, self.conv1d.weight[:, 0], self.conv1d.bias, self.cache, plan)
        num_tokens, shared = len(x_TM), need.num_groups * need.state_size
        x_TC, B_TC, C_TC = torch.split(self.act(conv_TC), [need.inner, shared, shared], dim=-1)
        x_THD = x_TC.reshape(num_tokens, need.num_heads, -1)
        y_THD = self.backend.scan(
            x_THD,
            functional.softplus(raw_TH.float() + self.dt_bias.float()).clamp(*self.step_limits),
            -self.A_log.float().exp(),
            B_TC.reshape(num_tokens, need.num_groups, -1),
            C_TC.reshape(num_tokens, need.num_groups, -1),
            self.cache,
            plan,
        )
        y_THD = y_THD + x_THD.float() * self.D.float()[:, None]
        out_TM: Tensor = self.out_proj(self.norm(y_THD.flatten(1), gate_TC).to(x_TM.dtype))
        return out_TM
