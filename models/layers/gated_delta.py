"""The gated delta net (Yang, Kautz and Hatamizadeh, arXiv:2412.06464), as Qwen3-Next has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kvhybrid.models.backends import gated_delta_backends
from kvhybrid.models.backends.gated_delta import GatedDeltaBackend, GatedDeltaNeed
from kvhybrid.models.layers.activation import Activation
from kvhybrid.models.layers.cached import CachedLayer, dtype_name
from kvhybrid.models.layers.mamba import DepthwiseConv
from kvhybrid.models.layers.plans import Plans
from kvhybrid.specs import KVCacheSpec, MambaSpec

UNIT_EPS = 1e-6
"""Added to the squared length of queries and keys before they are made unit vectors."""


@dataclass(frozen=True)
class GatedDeltaSizes:
    width: int
    num_heads: int
    num_key_heads: int
    key_size: int
    value_size: int
    conv_width: int
    norm_eps: float

    @classmethod
    def read(cls, config: Mapping[str, Any], width: int, norm_eps: float) -> GatedDeltaSizes:
        """From the ``linear_`` keys of a Hugging Face config; what it leaves out is Qwen3-Next's."""
        return cls(
            width=width,
            num_heads=config.get("linear_num_value_heads", 32),
            num_key_heads=config.get("linear_num_key_heads", 16),
            key_size=config.get("linear_key_head_dim", 128),
            value_size=config.get("linear_value_head_dim", 128),
            conv_width=config.get("linear_conv_kernel_dim", 4),
            norm_eps=norm_eps,
        )

    def need(self, layer: str) -> GatedDeltaNeed:
        return GatedDeltaNeed(
            layer, self.num_heads, self.num_key_heads, self.key_size, self.value_size, self.conv_width
        )

    def ungroup(self, weight: Tensor, parts: list[int]) -> Tensor:
        """The rows of a projection that a checkpoint keeps key head by key head, as ``parts`` of so many rows
        each, in the order of the layer: the first part of every key head, then the second, …"""
        if len(weight) != self.num_key_heads * sum(parts):
            return weight  # misshapen, which the check of all weights tells better
        grouped = weight.view(self.num_key_heads, sum(parts), *weight.shape[1:])
        return torch.cat([part.flatten(0, 1) for part in torch.split(grouped, parts, dim=1)])


class NormThenGate(nn.Module):
    """``x / rms(x) · weight · silu(gate)`` for each head. ``x`` is float32, and so is what comes out."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size))

    def fill(self, generator: torch.Generator) -> None:
        """The weights of an untrained layer."""
        self.weight.fill_(1.0)

    def forward(self, x_THD: Tensor, gate_THD: Tensor) -> Tensor:
        unit_THD = x_THD * torch.rsqrt(x_THD.square().mean(-1, keepdim=True) + self.eps)
        return self.weight.float() * unit_THD * functional.silu(gate_THD.float())


class GatedDeltaNet(CachedLayer):
    """Keeps a convolution state of W − 1 inputs (queries, keys, values) and a float32 state of H × R × D."""

    backend: GatedDeltaBackend

    def __init__(self, name: str, sizes: GatedDeltaSizes, act: Activation, *, backend: str) -> None:
        super().__init__()
        self.name = name
        self.sizes = sizes
        self.act = act
        self.need = sizes.need(name)
        self.backend = gated_delta_backends.find(backend)(self.need)
        self.in_proj_qkvz = nn.Linear(sizes.width, self.need.channels + self.need.values, bias=False)
        self.in_proj_ba = nn.Linear(sizes.width, 2 * sizes.num_heads, bias=False)
        self.conv1d = DepthwiseConv(self.need.channels, sizes.conv_width, bias=False)
        self.dt_bias = nn.Parameter(torch.empty(sizes.num_heads))
        self.A_log = nn.Parameter(torch.empty(sizes.num_heads))
        self.norm = NormThenGate(sizes.value_size, sizes.norm_eps)
        self.out_proj = nn.Linear(self.need.values, sizes.width, bias=False)

    def fill(self, generator: torch.Generator) -> None:
        """The weights of an untrained layer: decays between 1 and 16, and steps between 0.001 and 0.1."""
        self.A_log.copy_((1.0 + 15.0 * torch.rand(self.sizes.num_heads, generator=generator)).log())
        step = 0.001 * 100.0 ** torch.rand(self.sizes.num_heads, generator=generator)
        self.dt_bias.copy_(step.expm1().log())

    def spec(self, block_size: int, dtype: torch.dtype) -> KVCacheSpec:
        sizes = self.sizes
        return MambaSpec(
            block_size=block_size,
            names=("conv", "state"),
            shapes=(
                (self.need.channels, sizes.conv_width - 1),
                (sizes.num_heads, sizes.key_size, sizes.value_size),
            ),
            dtypes=(dtype_name(dtype), "float32"),
        )

    def forward(self, x_TM: Tensor, plans: Plans) -> Tensor:
        sizes, need, num_tokens = self.sizes, self.need, len(x_TM)
        plan = plans.plan(self.name, self.backend)
        inputs_TC, gate_TC = self.in_proj_qkvz(x_TM).split((need.channels, need.values), dim=-1)
        beta_TH, step_TH = self.in_proj_ba(x_TM).float().chunk(2, dim=-1)
        conv_TC = self.act(self.backend.convolve(inputs_TC, self.conv1d.weight[:, 0], self.cache, plan))
        q_TC, k_TC, v_TC = torch.split(conv_TC, [need.keys, need.keys, need.values], dim=-1)
        y_THD = self.backend.scan(
            _unit(q_TC.reshape(num_tokens, -1, sizes.key_size)) * sizes.key_size**-0.5,
            _unit(k_TC.reshape(num_tokens, -1, sizes.key_size)),
            v_TC.reshape(num_tokens, -1, sizes.value_size),
            -self.A_log.float().exp() * functional.softplus(step_TH + self.dt_bias.float()),
            beta_TH.sigmoid(),
            self.cache,
            plan,
        )
        gated_THD = self.norm(y_THD, gate_TC.reshape(y_THD.shape))
        out_TM: Tensor = self.out_proj(gated_THD.flatten(1).to(x_TM.dtype))
        return out_TM


def _unit(x_TGR: Tensor) -> Tensor:
    x_TGR = x_TGR.float()
    return x_TGR * torch.rsqrt(x_TGR.square().sum(-1, keepdim=True) + UNIT_EPS)
