"""Batches for recurrent backends: sequences that go on from batch to batch, over strided pages full of NaN."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kvhybrid.models.backends.base import MambaBackend, MambaNeed
from kvhybrid.models.backends.mamba2 import Mamba2Backend, Mamba2Need
from kvhybrid.models.base import ForwardBatch, GroupBatch, LayerCache

BLOCK = 8
CUTS = ((0, 5, 6, 8, 9, 70, 90), (0, 1, 2, 50, 51, 60, 61), (0, 33, 34, 38, 39, 40, 41))
"""Where each of three sequences is cut: single tokens beside long runs, in one block and across blocks."""
MAMBA = MambaNeed("layers.0", channels=16, state_size=4, conv_width=4)
MAMBA2 = Mamba2Need("layers.0", num_heads=6, head_size=8, num_groups=2, state_size=4, conv_width=4)


@dataclass(frozen=True)
class Step:
    spans: tuple[tuple[int, int], ...]
    batch: ForwardBatch
    group: GroupBatch

    def rows(self, wholes: list[Tensor]) -> Tensor:
        """The batch's tokens out of every sequence's."""
        return torch.cat([whole[start:stop] for whole, (start, stop) in zip(wholes, self.spans, strict=True)])


def steps(device: torch.device | str = "cpu") -> Iterator[Step]:
    table = (torch.randperm(63, generator=torch.Generator().manual_seed(0)).view(3, 21) + 1).to(device)
    for number in range(len(CUTS[0]) - 1):
        spans = tuple((cut[number], cut[number + 1]) for cut in CUTS)
        starts = tuple(torch.tensor([0, *(stop - start for start, stop in spans)]).cumsum(0).tolist())
        contexts = tuple(start for start, _ in spans)
        batch = ForwardBatch(torch.zeros(0), torch.zeros(0), starts, contexts, torch.zeros(0), {})
        yield Step(spans, batch, GroupBatch(BLOCK, table, torch.zeros(0, dtype=torch.int64)))


def pages(
    conv: tuple[int, ...], ssm: tuple[int, ...], dtype: torch.dtype, device: torch.device | str = "cpu"
) -> LayerCache:
    """64 padded pages with a conv state of ``dtype`` and a float32 scan state."""
    sizes = [torch.Size(conv).numel() * torch.finfo(dtype).bits // 8, torch.Size(ssm).numel() * 4]
    raw = torch.full((64, sum(sizes) + 64), 0xFF, dtype=torch.uint8, device=device)
    return {
        "conv": raw[:, : sizes[0]].view(dtype).unflatten(1, conv),
        "ssm": raw[:, sizes[0] : sum(sizes)].view(torch.float32).unflatten(1, ssm),
    }


def drawn(*shape: int, seed: int, device: torch.device | str = "cpu") -> list[Tensor]:
    """One tensor a sequence, of its length."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(cut[-1], *shape, generator=generator).to(device) for cut in CUTS]


def part_of_a_projection(x_TC: Tensor) -> Tensor:
    """As a layer hands it over: rows further apart than they are long."""
    return torch.cat((x_TC, x_TC[:, :4]), dim=1)[:, : x_TC.shape[1]]


def positive(tensors: list[Tensor]) -> list[Tensor]:
    return [torch.nn.functional.softplus(tensor) for tensor in tensors]


def mamba_outputs(
    backend: MambaBackend, dtype: torch.dtype, device: torch.device | str = "cpu", dt_scale: float = 1.0
) -> tuple[list[Tensor], LayerCache]:
    """Convolution and scan of every step, and the pages that remain."""
    need = backend.need
    cache = pages((need.channels, need.conv_width - 1), (need.channels, need.state_size), dtype, device)
    x, dt = drawn(need.channels, seed=1, device=device), positive(drawn(need.channels, seed=2, device=device))
    B, C = (drawn(need.state_size, seed=seed, device=device) for seed in (3, 4))
    generator = torch.Generator().manual_seed(5)
    A = -torch.randn(need.channels, need.state_size, generator=generator).exp().to(device)
    weight, bias = (torch.randn(need.channels, *more, generator=generator) for more in ((need.conv_width,), ()))
    weight, bias = weight.to(device, dtype), bias.to(device, dtype)
    found = []
    for step in steps(device):
        plan = backend.plan(step.batch, step.group)
        inner = part_of_a_projection(step.rows(x).to(dtype))
        found.append(backend.convolve(inner, weight, bias, cache, plan))
        scale = step.rows(dt) * dt_scale
        found.append(backend.scan(inner, scale, A, step.rows(B).to(dtype), step.rows(C).to(dtype), cache, plan))
    return found, cache


def mamba2_outputs(
    backend: Mamba2Backend, dtype: torch.dtype, device: torch.device | str = "cpu", dt_scale: float = 1.0
) -> tuple[list[Tensor], LayerCache]:
    """As `mamba_outputs`."""
    need = backend.need
    ssm = (need.num_heads, need.head_size, need.state_size)
    cache = pages((need.channels, need.conv_width - 1), ssm, dtype, device)
    x, dt = drawn(need.channels, seed=1, device=device), positive(drawn(need.num_heads, seed=2, device=device))
    B, C = (drawn(need.num_groups, need.state_size, seed=seed, device=device) for seed in (3, 4))
    generator = torch.Generator().manual_seed(5)
    A = -torch.randn(need.num_heads, generator=generator).exp().to(device)
    weight = torch.randn(need.channels, need.conv_width, generator=generator).to(device, dtype)
    found = []
    for step in steps(device):
        plan = backend.plan(step.batch, step.group)
        inner = part_of_a_projection(step.rows(x).to(dtype))
        found.append(backend.convolve(inner, weight, None, cache, plan))
        heads = inner[:, : need.inner].unflatten(1, (need.num_heads, -1))
        scale = step.rows(dt) * dt_scale
        found.append(backend.scan(heads, scale, A, step.rows(B).to(dtype), step.rows(C).to(dtype), cache, plan))
    return found, cache


def difference(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest, as a share of the largest element of each pair."""
    return max(
        float((a.float() - b.float()).abs().max() / b.float().abs().max())
        for a, b in zip(found, expected, strict=True)
    )


def kept(cache: LayerCache) -> list[Tensor]:
    """The states in every page; pages that were never written are zeros here."""
    return [cache["conv"].float().nan_to_num(), cache["ssm"].nan_to_num()]
