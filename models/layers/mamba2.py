"""The Mamba-2 mixer (Dao and Gu, arXiv:2405.21060): heads with one decay each, and a gated norm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kvhybrid.models.backends import mamba2_backends
from kvhybrid.models.backends.mamba2 import Mamba2Backend, Mamba2Need
from kvhybrid.models.layers.activation import Activation
from kvhybrid.models.layers.cached import CachedLayer, dtype_name
from kvhybrid.models.layers.mamba import DepthwiseConv
from kvhybrid.models.layers.plans import Plans
from kvhybrid.specs import KVCacheSpec, MambaSpec


@dataclass(frozen=True)
class Mamba2Sizes:
    width: int
    num_heads: int
    head_size: int
    num_groups: int
    state_size: int
    conv_width: int
    conv_bias: bool
    proj_bias: bool
    norm_eps: float
    step_limits: tuple[float, float]
    """Each token's step size is kept within."""

    @classmethod
    def read(cls, config: Mapping[str, Any], width: int, norm_eps: float) -> Mamba2Sizes:
        """From the keys that Bamba and Granite configs share; both have the same defaults."""
        inner = config.get("mamba_expand", 2) * width
        heads = config.get("mamba_n_heads", 128)
        size = config.get("mamba_d_head", "auto")
        size = inner // heads if size == "auto" else size
        if size * heads != inner:
            raise ValueError(
                f"mamba_n_heads · mamba_d_head must be {inner}, which is mamba_expand · hidden_size, "
                f"found {heads} · {size}"
            )
        return cls(
            width=width,
            num_heads=heads,
            head_size=size,
            num_groups=config.get("mamba_n_groups", 1),
            state_size=config.get("mamba_d_state", 256),
            conv_width=config.get("mamba_d_conv", 4),
            conv_bias=config.get("mamba_conv_bias", True),
            proj_bias=config.get("mamba_proj_bias", False),
            norm_eps=norm_eps,
            step_limits=_limits(config.get("time_step_limit")),
        )


def _limits(found: Any) -> tuple[float, float]:
    """``time_step_limit``; an infinite end may be spelt as a string or, by transformers, as a dict of one."""
    if found is None:
        return 0.0, float("inf")
    low, high = (float(end["__float__"] if isinstance(end, Mapping) else end) for end in found)
    return low, high


class GatedRMSNorm(nn.Module):
    """``x · silu(gate)``, then ``x / rms(x) · weight`` with a mean of its own for each group of channels.

    ``x`` is float32, and so is what comes out.
    """

    def __init__(self, size: int, num_groups: int, eps: float) -> None:
        super().__init__()
        self.num_groups = num_groups
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size))

    def fill(self, generator: torch.Generator) -> None:
        """The weights of an untrained layer."""
        self.weight.fill_(1.0)

    def forward(self, x_TC: Tensor, gate_TC: Tensor) -> Tensor:
        gated_TGC = (x_TC * functional.silu(gate_TC.float())).view(len(x_TC), self.num_groups, -1)
        unit_TGC = gated_TGC * torch.rsqrt(gated_TGC.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * unit_TGC.flatten(1)


class Mamba2Mixer(CachedLayer):
    """Keeps a convolution state of W − 1 inputs (x, B and C) and a float32 scan state of H × D × R."""

    backend: Mamba2Backend

    def __init__(self, name: str, sizes: Mamba2Sizes, act: Activation, *, backend: str) -> None:
        super().__init__()
        self.name = name
        self.sizes = sizes
        self.act = act
        self.need = Mamba2Need(
            name, sizes.num_heads, sizes.head_size, sizes.num_groups, sizes.state_size, sizes.conv_width
        )
        self.backend = mamba2_backends.find(backend)(self.need)
        inner, channels = self.need.inner, self.need.channels
        self.in_proj = nn.Linear(sizes.width, inner + channels + sizes.num_heads, bias=sizes.proj_bias)
        self.conv1d = DepthwiseConv(channels, sizes.conv_width, sizes.conv_bias)
        self.dt_bias = nn.Parameter(torch.empty(sizes.num_heads))
        self.A_log = nn.Parameter(torch.empty(sizes.num_heads))
        self.D = nn.Parameter(torch.empty(sizes.num_heads))
        self.norm = GatedRMSNorm(inner, sizes.num_groups, sizes.norm_eps)
        self.out_proj = nn.Linear(inner, sizes.width, bias=sizes.proj_bias)

    def fill(self, generator: torch.Generator) -> None:
        """The weights of an untrained layer: decays between 1 and 16, and steps between 0.001 and 0.1."""
        self.A_log.copy_((1.0 + 15.0 * torch.rand(self.sizes.num_heads, generator=generator)).log())
        self.D.fill_(1.0)
        step = 0.001 * 100.0 ** torch.rand(self.sizes.num_heads, generator=generator)
        self.dt_bias.copy_(step.expm1().log())

    def spec(self, block_size: int, dtype: torch.dtype) -> KVCacheSpec:
        sizes = self.sizes
        return MambaSpec(
            block_size=block_size,
            names=("conv", "ssm"),
            shapes=(
                (self.need.channels, sizes.conv_width - 1),
                (sizes.num_heads, sizes.head_size, sizes.state_size),
            ),
            dtypes=(dtype_name(dtype), "float32"),
        )

    def forward(self, x_TM: Tensor, plans: Plans) -> Tensor:
        sizes, need = self.sizes, self.need
        plan = plans.plan(self.name, self.backend)
        gate_TC, inputs_TC, raw_TH = self.in_proj(x_TM).split((need.inner, need.channels, sizes.num_heads), dim=-1)
        conv_TC = self.backend.convolve(inputs_TC, self.conv1d.weight[:, 0], self.conv1d.bias, self.cache, plan)
        num_tokens, shared = len(x_TM), sizes.num_groups * sizes.state_size
        x_TC, B_TC, C_TC = torch.split(self.act(conv_TC), [need.inner, shared, shared], dim=-1)
        x_THD = x_TC.reshape(num_tokens, sizes.num_heads, -1)
        y_THD = self.backend.scan(
            x_THD,
            functional.softplus(raw_TH.float() + self.dt_bias.float()).clamp(*sizes.step_limits),
            -self.A_log.float().exp(),
            B_TC.reshape(num_tokens, sizes.num_groups, -1),
            C_TC.reshape(num_tokens, sizes.num_groups, -1),
            self.cache,
            plan,
        )
        y_THD = y_THD + x_THD.float() * self.D.float()[:, None]
        out_TM: Tensor = self.out_proj(self.norm(y_THD.flatten(1), gate_TC).to(x_TM.dtype))
        return out_TM
