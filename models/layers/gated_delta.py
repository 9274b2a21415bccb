"""The gated delta net (Yang, Kautz and Hatamizadeh, arXiv:2412.06464), as in Qwen3-Next."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from kvhybrid.models.backends import gated_delta_backends
from kvhybrid.models.backends.gated_delta import GatedDeltaBackend, GatedDeltaNeed
from kvhybrid.models.config import count
from kvhybrid.models.layers.activation import Activation
from kvhybrid.models.layers.cached import CachedLayer, dtype_name
from kvhybrid.models.layers.mamba import DepthwiseConv
from kvhybrid.models.layers.plans import Plans
from kvhybrid.specs import KVCacheSpec, MambaSpec

UNIT_EPS = 1e-6
"""Added to the squared length of queries and keys before normalization."""


@dataclass(frozen=True, kw_only=True)
class GatedDeltaSizes:
    """The ``linear_`` keys of a Hugging Face config, with Qwen3-Next's defaults."""

    num_heads: int = count(32, key="linear_num_value_heads")
    num_key_heads: int = count(16, key="linear_num_key_heads")
    key_size: int = count(128, key="linear_key_head_dim")
    value_size: int = count(128, key="linear_value_head_dim")
    conv_width: int = count(4, least=2, key="linear_conv_kernel_dim")

    def need(self, layer: str) -> GatedDeltaNeed:
        """The layer's requirements."""
        return GatedDeltaNeed(
            layer, self.num_heads, self.num_key_heads, self.key_size, self.value_size, self.conv_width
        )

    def ungroup(self, weight: Tensor, parts: list[int]) -> Tensor:
        """Reorder the rows of a projection, which are by key head in checkpoints, to be by part: the first part of
        every key head, then the second, …

        ``parts`` has the number of rows of each part.
        """
        if len(weight) != self.num_key_heads * sum(parts):
            return weight  # misshapen; the check of all weights gives a better message
        grouped = weight.view(self.num_key_heads, sum(parts), *weight.shape[1:])
        return torch.cat([part.flatten(0, 1) for part in torch.split(grouped, parts, dim=1)])


class NormThenGate(nn.Module):
    """``x / rms(x) · weight · silu(gate)`` for each head. ``x`` and the result are float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size))

    def fill(self, generator: torch.Generator) -> None:
        """Initialize an untrained layer."""
        self.weight.fill_(1.0)

    def forward(self, x_THD: Tensor, gate_THD: Tensor) -> Tensor:
        unit_THD = x_THD * torch.rsqrt(x_THD.square().mean(-1, keepdim=True) + self.eps)
        return self.weight.float() * unit_THD * functional.silu(gate_THD.float())


class GatedDeltaNet(CachedLayer):
    """Keeps a convolution state of W − 1 inputs (queries, keys, values) and a float32 state of H × R × D."""

    backend: GatedDeltaBackend

    def __init__(
        self, name: str, width: int, sizes: GatedDeltaSizes, norm_eps: float, act: Activation, *, backend: str
    ) -> None:
        super().__init__()
        self.name = name
        self.act = act
        self.need = need = sizes.need(name)
        self.backend = gated_delta_backends.find(backend)(need)
        self.in_proj_qkvz = nn.Linear(width, need.channels + need.values, bias=False)
        self.in_proj_ba = nn.Linear(width, 2 * need.num_heads, bias=False)
        self.conv1d = DepthwiseConv(need.channels, need.conv_width, bias=False)
        self.dt_bias = nn.Parameter(torch.empty(need.num_heads))
        self.A_log = nn.Parameter(torch.empty(need.num_heads))
        self.norm = NormThenGate(need.value_size, norm_eps)
        self.out_proj = nn.Linear(need.values, width, bias=False)

    def fill(self, generator: torch.Generator) -> None:
        """Initialize an untrained layer: decays between 1 and 16, and steps between 0.001 and 0.1."""
        self.A_log.copy_((1.0 + 15.0 * torch.rand(self.need.num_heads, generator=generator)).log())
        step = 0.001 * 100.0 ** torch.rand(self.need.num_heads, generator=generator)
        self.dt_bias.copy_(step.expm1().log())

    def spec(self, block_size: int, dtype: torch.dtype) -> KVCacheSpec:
        need = self.need
        return MambaSpec(
            block_size=block_size,
            names=("conv", "state"),
            shapes=(
                (need.channels, need.conv_width - 1),
                (need.num_heads, need.key_size, need.value_size),
            ),
            dtypes=(dtype_name(dtype), "float32"),
        )

    def forward(self, x_TM: Tensor, plans: Plans) -> Tensor:
        need, num_tokens = self.need, len(x_TM)
        plan = plans.plan(self.name, self.backend)
        inputs_TC, gate_TC = self.in_proj_qkvz(x_TM).split((need.channels, need.values), dim=-1)
        beta_TH, step_TH = self.in_proj_ba(x_TM).float().chunk(2, dim=-1)
        conv_TC = self.act(self.backend.convolve(inputs_TC, self.conv1d.weight[:, 0], self.cache, plan))
        q_TC, k_TC, v_TC = torch.split(conv_TC, [need.keys, need.keys, need.values], dim=-1)
        y_THD = self.backend.scan(
            _unit(q_TC.reshape(num_tokens, -1, need.key_size)) * need.key_size**-0.5,
            _unit(k_TC.reshape(num_tokens, -1, need.key_size)),
            v_TC.reshape(num_tokens, -1, need.value_size),
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
