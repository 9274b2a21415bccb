"""The reference Mamba backend against the recurrence, token by token in float64."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kvhybrid.models.backends.base import MambaNeed
from kvhybrid.models.backends.torch_mamba import TorchMamba
from kvhybrid.models.base import ForwardBatch, GroupBatch, LayerCache

CHANNELS, STATE, WIDTH, BLOCK = 6, 4, 4, 8


@dataclass(frozen=True)
class Inputs:
    x: Tensor
    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor

    @classmethod
    def random(cls, length: int, seed: int, dt_scale: float = 1.0) -> Inputs:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        return cls(
            x=normal(length, CHANNELS),
            dt=torch.nn.functional.softplus(normal(length, CHANNELS)) * dt_scale,
            A=-normal(CHANNELS, STATE).exp(),
            B=normal(length, STATE),
            C=normal(length, STATE),
        )

    def part(self, start: int, stop: int) -> Inputs:
        rows = slice(start, stop)
        return Inputs(self.x[rows], self.dt[rows], self.A, self.B[rows], self.C[rows])


def recurrence(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Outputs and the last state."""
    h = torch.zeros(CHANNELS, STATE, dtype=torch.float64)
    outputs = []
    for x, dt, B, C in zip(
        inputs.x.double(), inputs.dt.double(), inputs.B.double(), inputs.C.double(), strict=True
    ):
        h = torch.exp(dt[:, None] * inputs.A.double()) * h + (dt * x)[:, None] * B
        outputs.append(h @ C)
    return torch.stack(outputs), h


def new_cache() -> LayerCache:
    return {
        "conv": torch.full((64, CHANNELS, WIDTH - 1), float("nan")),
        "ssm": torch.full((64, CHANNELS, STATE), float("nan")),
    }


def run(
    cache: LayerCache, parts: list[Inputs], contexts: tuple[int, ...], table: Tensor
) -> tuple[TorchMamba, ForwardBatch, GroupBatch, Tensor]:
    """One batch of several sequences through the scan."""
    lengths = [len(part.x) for part in parts]
    starts = tuple(torch.tensor([0, *lengths]).cumsum(0).tolist())
    batch = ForwardBatch(torch.zeros(0), torch.zeros(0), starts, contexts, torch.zeros(0), {})
    group = GroupBatch(BLOCK, table, torch.zeros(0, dtype=torch.int64))
    backend = TorchMamba(MambaNeed("layers.0", CHANNELS, STATE, WIDTH))
    x, dt, B, C = (torch.cat([getattr(part, name) for part in parts]) for name in ("x", "dt", "B", "C"))
    return backend, batch, group, backend.scan(x, dt, parts[0].A, B, C, cache, backend.plan(batch, group))


@pytest.mark.parametrize("length", [1, 2, 3, 31, 32, 33, 500])
@pytest.mark.parametrize("dt_scale", [1e-3, 1.0, 100.0])
def test_scan_equals_the_recurrence(length: int, dt_scale: float) -> None:
    """Steps of 100 take every decay to zero; their sum over a chunk would overflow if it were inverted."""
    inputs = Inputs.random(length, seed=length, dt_scale=dt_scale)
    cache = new_cache()
    table = torch.arange(1, 64)[None]
    *_, found = run(cache, [inputs], (0,), table)
    expected, state = recurrence(inputs)
    size = float(expected.abs().max())
    difference = float((found - expected).abs().max()) / size
    assert difference < 2e-6  # measured maximum: 4.1e-7
    kept = cache["ssm"][table[0, (length - 1) // BLOCK]]
    assert (kept - state).abs().max() / state.abs().max() < 2e-6


def test_ragged_continuations_resume_from_their_states() -> None:
    """Three sequences; each batch mixes one-token steps with long ones, in one block and across blocks."""
    whole = [Inputs.random(length, seed=length) for length in (90, 61, 40)]
    whole = [Inputs(w.x, w.dt, whole[0].A, w.B, w.C) for w in whole]
    cache = new_cache()
    table = torch.randperm(63, generator=torch.Generator().manual_seed(0)).view(3, 21) + 1
    cuts = [(0, 5, 6, 7, 70, 90), (0, 1, 2, 50, 51, 61), (0, 33, 34, 38, 39, 40)]
    outputs: list[list[Tensor]] = [[], [], []]
    for step in range(5):
        contexts = tuple(cut[step] for cut in cuts)
        parts = [w.part(cut[step], cut[step + 1]) for w, cut in zip(whole, cuts, strict=True)]
        *_, found = run(cache, parts, contexts, table)
        for s, output in enumerate(found.split([len(part.x) for part in parts])):
            outputs[s].append(output)
    for s, inputs in enumerate(whole):
        expected, _ = recurrence(inputs)
        assert (torch.cat(outputs[s]) - expected).abs().max() < 1e-5 * expected.abs().max()


def test_states_before_the_target_block_stay_as_they_are() -> None:
    """What was kept at a block's end can still be resumed from after the sequence has gone on."""
    inputs = Inputs.random(24, seed=1)
    cache = new_cache()
    table = torch.tensor([[9, 4, 7]])
    run(cache, [inputs.part(0, BLOCK)], (0,), table)
    kept = cache["ssm"][9].clone()
    *_, first = run(cache, [inputs.part(BLOCK, 24)], (BLOCK,), table)
    assert torch.equal(cache["ssm"][9], kept)
    *_, again = run(cache, [inputs.part(BLOCK, 24)], (BLOCK,), torch.tensor([[9, 5, 6]]))
    assert torch.equal(first, again)


def test_convolution_sees_across_batches() -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(3, 20, CHANNELS, generator=generator)
    weight, bias = torch.randn(CHANNELS, WIDTH, generator=generator), torch.randn(CHANNELS)
    expected = torch.nn.functional.conv1d(
        x.transpose(1, 2), weight[:, None], bias, padding=WIDTH - 1, groups=CHANNELS
    )[:, :, :20].transpose(1, 2)
    cache = new_cache()
    table = torch.tensor([[3, 1, 2], [10, 11, 12], [20, 21, 22]])
    cuts = [(0, 1, 2, 3, 20), (0, 2, 9, 10, 20), (0, 7, 8, 16, 20)]
    backend = TorchMamba(MambaNeed("layers.0", CHANNELS, STATE, WIDTH))
    for step in range(4):
        spans = [(cut[step], cut[step + 1]) for cut in cuts]
        starts = torch.tensor([0, *(stop - start for start, stop in spans)]).cumsum(0).tolist()
        contexts = tuple(start for start, _ in spans)
        batch = ForwardBatch(torch.zeros(0), torch.zeros(0), tuple(starts), contexts, torch.zeros(0), {})
        group = GroupBatch(BLOCK, table, torch.zeros(0, dtype=torch.int64))
        new = torch.cat([x[s, start:stop] for s, (start, stop) in enumerate(spans)])
        found = backend.convolve(new, weight, bias, cache, backend.plan(batch, group))
        wanted = torch.cat([expected[s, start:stop] for s, (start, stop) in enumerate(spans)])
        assert (found - wanted).abs().max() < 2e-6
